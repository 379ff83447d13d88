//! Field and label selectors, and the filter of a list or a watch that uses them.
//!
//! Grammar and texts: kube-apiserver 1.36, `apimachinery/pkg/fields` and `apimachinery/pkg/labels`.

mod fields;
mod labels;

use larder_objects::ObjectKey;
use smol_str::SmolStr;

pub(crate) use fields::FieldSelector;
pub(crate) use labels::LabelSelector;

use crate::object::Object;

/// The objects of a kind that a list or a watch selects.
#[derive(Clone, Debug, Default)]
pub(crate) struct Filter {
    /// Only this namespace; `None` for all, and for kinds of cluster scope.
    pub(crate) namespace: Option<SmolStr>,
    pub(crate) fields: FieldSelector,
    pub(crate) labels: LabelSelector,
}

impl Filter {
    pub(crate) fn matches(&self, object: &Object) -> bool {
        self.namespace
            .as_ref()
            .is_none_or(|namespace| *namespace == object.key.namespace)
            && self.fields.matches(object)
            && self.labels.matches(object)
    }

    /// The one name that can match; `None` when several can.
    pub(crate) fn name(&self) -> Option<&SmolStr> {
        self.fields.name()
    }

    /// The one object that can match; `None` when several can, or one in any namespace.
    pub(crate) fn key(&self) -> Option<ObjectKey> {
        let (namespace, name) = (self.namespace.clone()?, self.name()?.clone());
        Some(ObjectKey::new(namespace, name))
    }

    /// Whether the filter lets everything of its namespace through.
    pub(crate) fn takes_all(&self) -> bool {
        self.fields.is_empty() && self.labels.is_empty()
    }
}

#[cfg(test)]
mod testing {
    use serde_json::json;

    use crate::{
        ApiKind,
        object::{EventType, Object},
    };

    /// The objects of the tests' selectors.
    pub(super) fn pod() -> Object {
        let pod = json!({"metadata": {"namespace": "n", "name": "web", "uid": "u", "labels": {"app": "web", "tier": "", "weight": "7"}},
            "spec": {"nodeName": "n1"}, "status": {"phase": "Running"}});
        Object::new(ApiKind::Pod, pod, 1, EventType::Added)
    }
}
