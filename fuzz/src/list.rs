//! Lists that an API server answers with. The body comes in the pieces that line feeds make.

use larder_objects::{ObjectKey, Secret};
use larder_watch::{ByName, fuzzing};

use crate::{block_on, watch::answering};

/// Reads an input. Returns whether it was accepted.
pub fn run(input: &[u8]) -> bool {
    block_on(async {
        let target = ByName::<Secret>::new(ObjectKey::new("n", "a"));
        let found = fuzzing::list(answering(input), &target).await;
        if let Ok(Some(secret)) = &found {
            assert_eq!(secret.metadata.name, "a");
        }
        found.is_ok()
    })
}
