//! Lists that an API server answers with. The body comes in the pieces that line feeds make.

use larder_objects::{ObjectKey, Secret};
use larder_watch::{ByName, fuzzing};

use super::{Reader::OfBytes, Target, block_on, watch::answering};
use crate::{outcome::Outcome, structure::Structure};

pub(super) const TARGET: Target =
    Target::new("list", OfBytes(run), Structure::Tree { prefix: 0 }, 8 << 10);

fn run(input: &[u8]) -> Outcome {
    block_on(async {
        let target = ByName::<Secret>::new(ObjectKey::new("n", "a"));
        match fuzzing::list(answering(input), &target).await {
            Ok(found) => {
                if let Some(secret) = &found {
                    assert_eq!(secret.metadata.name, "a");
                }
                Outcome::accepted().with(&found.is_some())
            }
            Err(error) => Outcome::rejected(&larder_objects::chain(&error)),
        }
    })
}
