//! What the repository promises of itself: layers of imports and names, the record of the public API, a test for each
//! scenario of the specifications, and examples that compile outside the workspace.

mod imports;
mod layers;
mod links;
mod outside;
mod public_api;
mod scenarios;
