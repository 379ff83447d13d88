#![doc = include_str!("../README.md")]

mod directory;
mod feed;

pub use self::{
    directory::{OpenError, read_directory},
    feed::{Feed, Placement},
};
