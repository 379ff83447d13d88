//! A kind of which larder knows nothing, managed like ConfigMaps and Secrets.

use k8s_openapi::api::core::v1::Pod;
use larder::{Object, ObjectManager, ObjectMeta, ObjectType};
use serde::Deserialize;

use crate::scripted::Script;

/// Pods refer to it by an annotation.
#[derive(Debug, PartialEq, Deserialize)]
struct Recipe {
    metadata: ObjectMeta,
    steps: Vec<String>,
}

impl Object for Recipe {
    const TYPE: ObjectType = ObjectType {
        group: "example.dev",
        version: "v1",
        kind: "Recipe",
        resource: "recipes",
        singular: "recipe",
    };
    const IS_SECRET: bool = false;

    fn visit_references<'a>(pod: &'a Pod, found: &mut impl FnMut(&'a str)) {
        let annotations = pod.metadata.annotations.as_ref();
        if let Some(name) = annotations.and_then(|all| all.get("example.dev/recipe")) {
            found(name);
        }
    }

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn is_immutable(&self) -> bool {
        false
    }
}

#[tokio::test(start_paused = true)]
async fn a_made_up_kind_is_managed_like_the_others() {
    let (client, mut script) = Script::new();
    let recipes = ObjectManager::<Recipe>::watching(client);
    let pod = r#"{"metadata":{"namespace":"n","name":"p","uid":"u","annotations":{"example.dev/recipe":"bread"}}}"#;
    let guard = recipes.registered(&serde_json::from_str(pod).unwrap());
    let (read, _stream) = tokio::join!(guard.get("bread"), async {
        let request = script.next().await;
        let collection = "/apis/example.dev/v1/namespaces/n/recipes?";
        assert!(request.path_and_query.starts_with(collection));
        let metadata = r#"{"namespace":"n","name":"bread","resourceVersion":"5"}"#;
        let kind = r#""apiVersion":"example.dev/v1","kind":"Recipe""#;
        let object = format!(r#"{{{kind},"metadata":{metadata},"steps":["knead","bake"]}}"#);
        request.synced(5, Some(&object))
    });
    assert_eq!(read.unwrap().steps, ["knead", "bake"]);
}
