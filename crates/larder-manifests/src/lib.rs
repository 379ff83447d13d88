#![doc = include_str!("../README.md")]

mod object_id;
mod record;

mod directory;
mod feed;

pub use self::{
    directory::{Checked, OpenError, check},
    feed::{Feed, Placement},
};
