//! Lists that an API server answers with. The body comes in the pieces that line feeds make.

use larder_objects::{ObjectKey, Secret};
use larder_watch::{ByName, fuzzing};

use crate::{block_on, watch::answering};

/// Reads an input; `None` if it is rejected.
pub fn run(input: &[u8]) -> Option<()> {
    block_on(async {
        let target = ByName::<Secret>::new(ObjectKey::new("n", "a"));
        let found = fuzzing::list(answering(input), &target).await.ok()?;
        assert!(found.is_none_or(|secret| secret.metadata.name == "a"));
        Some(())
    })
}
