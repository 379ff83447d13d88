#![doc = include_str!("../README.md")]

pub mod bytes;
mod seal;

mod index;
mod key;
mod store;

pub use index::{CopyId, Version};
pub use key::{KeyError, KeySource, Keyring, UnknownKeySource};
pub use seal::{Digest, Owner, SealError, digest};
pub use store::{
    CheckpointDir, Contents, Found, RejectedFile, Rejection, SavedCopy, Store, StoreError,
    WantedCopy, WantedState, Written,
};
