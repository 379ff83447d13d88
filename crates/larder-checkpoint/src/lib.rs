#![doc = include_str!("../README.md")]

mod index;
mod key;
mod seal;
mod store;

pub use index::{CopyId, Malformed, Version};
pub use key::{KeyError, KeySource, Keyring, UnknownKeySource};
pub use seal::{Digest, Owner, SealError, digest};
pub use store::{
    CheckpointDir, Contents, Excess, Found, IndexWrite, MAX_FILE_BYTES, RejectedFile, Rejection,
    SavedCopy, Store, StoreError, WantedCopy, WantedState, Written,
};
