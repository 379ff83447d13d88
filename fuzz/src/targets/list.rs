//! Lists that an API server answers with. The body comes in the pieces that line feeds make.

use std::sync::Arc;

use larder_objects::{ObjectKey, Secret};
use larder_watch::{Api, ByName};

use super::{Target, block_on, watch::answering};
use crate::outcome::Outcome;

pub(super) const TARGET: Target = Target {
    name: "list",
    run,
    seeds: &[
        "{\"kind\":\"SecretList\",\"apiVersion\":\"v1\",\"metadata\":{\"resourceVersion\":\"5\"},\"items\":[\n\
         {\"metadata\":{\"name\":\"a\",\"namespace\":\"n\",\"resourceVersion\":\"4\"},\"data\":{\"k\":\"dg==\"}}]}",
        "{\"items\":[],\"metadata\":{\"resourceVersion\":\"5\",\"continue\":\"\"}}",
        "{\"items\":null,\"metadata\":{\"resourceVersion\":\"5\"}}",
    ],
    max_length: 8 << 10,
};

fn run(input: &[u8]) -> Outcome {
    block_on(async {
        let api = Api::new(answering(input));
        let target = ByName::<Secret>::new(Arc::new(ObjectKey::new("n", "a")));
        match api.list(&target, None).await {
            Ok(listed) => {
                if let Some(secret) = &listed.state {
                    assert_eq!(secret.metadata.name, "a");
                }
                Outcome::accepted()
                    .with(&listed.state.is_some())
                    .with(&listed.version.as_str().is_empty())
            }
            Err(error) => Outcome::rejected(&larder_objects::chain(&error)),
        }
    })
}
