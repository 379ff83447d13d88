#![doc = include_str!("../README.md")]

mod directory;
mod feed;
mod key_changes;

pub use self::{
    directory::OpenError,
    feed::{Feed, Placement},
};
