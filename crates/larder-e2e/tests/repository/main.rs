//! What the repository promises of itself: layers of imports and names, the record of the public API, a test for each
//! scenario of the specifications, examples that compile outside the workspace, and what documents name.

mod imports;
mod layers;
mod links;
mod outside;
mod public_api;
mod scenarios;
