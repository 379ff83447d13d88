//! One state of one object.
//!
//! Its JSON begins with kind and API version, as kube-apiserver writes it. So an item of a list, which has neither, is
//! a part of the same bytes.

use bytes::Bytes;
use larder_objects::ObjectKey;
use serde_json::Value;
use smol_str::SmolStr;

use crate::resource::ApiKind;

/// An event of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventType {
    Added,
    Modified,
    Deleted,
}

impl EventType {
    /// How a frame of this type begins, up to the object.
    const fn opening(self) -> &'static [u8] {
        match self {
            Self::Added => br#"{"type":"ADDED","object":"#,
            Self::Modified => br#"{"type":"MODIFIED","object":"#,
            Self::Deleted => br#"{"type":"DELETED","object":"#,
        }
    }
}

/// How a frame ends, from the end of the object.
const CLOSING: &[u8] = b"}\n";

/// The frame of a watch for an object, in pieces.
pub(crate) fn framed(event: EventType, json: Bytes) -> [Bytes; 3] {
    let [opening, closing] = [event.opening(), CLOSING].map(Bytes::from_static);
    [opening, json, closing]
}

/// One state of one object, and what the server must know of it without reading its JSON.
///
/// The JSON is held inside the watch frame that announced it, so that both are one allocation.
#[derive(Debug)]
pub(crate) struct Object {
    pub(crate) kind: ApiKind,
    pub(crate) key: ObjectKey,
    pub(crate) uid: SmolStr,
    /// The version of the change that made this state.
    pub(crate) version: u64,
    /// The type of that change.
    pub(crate) event: EventType,
    labels: Box<[(SmolStr, SmolStr)]>,
    /// The selectable fields of the kind that the object has.
    fields: Box<[(&'static str, SmolStr)]>,
    frame: Frame,
}

/// A frame of a watch. Its bytes may be a Secret's, so `Debug` shows their number.
struct Frame(Bytes);

impl std::fmt::Debug for Frame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "<{} bytes>", self.0.len())
    }
}

impl Object {
    /// The state `value` with `version`, which came by `event`. `value` is canonical and has a name.
    pub(crate) fn new(kind: ApiKind, mut value: Value, version: u64, event: EventType) -> Self {
        // Version 0: the object of a dry run, which has none.
        if version > 0 {
            value["metadata"]["resourceVersion"] = version.to_string().into();
        }
        // They stand in front of the rest.
        if let Some(fields) = value.as_object_mut() {
            fields.remove("kind");
            fields.remove("apiVersion");
        }
        let text = |value: &Value| match value {
            Value::String(text) => SmolStr::new(text),
            Value::Bool(flag) => SmolStr::new(if *flag { "true" } else { "false" }),
            _ => SmolStr::default(),
        };
        let metadata = |field: &str| text(&value["metadata"][field]);
        let labels = match &value["metadata"]["labels"] {
            Value::Object(labels) => labels
                .iter()
                .map(|(key, value)| (key.into(), value.as_str().unwrap_or_default().into()))
                .collect(),
            _ => Box::default(),
        };
        let fields = kind
            .resource()
            .fields
            .iter()
            .map(|field| (*field, text(kind.resource().selectable(&value, field))))
            .filter(|(_, value)| !value.is_empty())
            .collect();
        let opening = kind.resource().opening().as_bytes();
        let rest = serde_json::to_vec(&value).expect("a JSON value always serializes");
        let frame = [event.opening(), opening, &rest["{".len()..], CLOSING].concat();
        Self {
            kind,
            key: ObjectKey::new(metadata("namespace"), metadata("name")),
            uid: metadata("uid"),
            version,
            event,
            labels,
            fields,
            frame: Frame(frame.into()),
        }
    }

    /// The same state with the version of its end: how a watch shows that the object is gone.
    pub(crate) fn deleted_at(&self, version: u64) -> Self {
        Self::new(self.kind, self.value(), version, EventType::Deleted)
    }

    /// The object's JSON, shared.
    pub(crate) fn json(&self) -> Bytes {
        let frame = &self.frame.0;
        frame.slice(self.event.opening().len()..frame.len() - CLOSING.len())
    }

    /// The object's JSON as an item of a list of its kind, without kind and version and without the brace that opens
    /// it, shared.
    pub(crate) fn item(&self) -> Bytes {
        self.json().slice(self.kind.resource().opening().len()..)
    }

    /// The object's JSON, parsed.
    pub(crate) fn value(&self) -> Value {
        serde_json::from_slice(&self.json()).expect("the store holds what it serialized")
    }

    /// The watch frame of this state as `event`, shared: in one piece if the state came about by that event.
    pub(crate) fn frame(&self, event: EventType) -> [Bytes; 3] {
        if event == self.event {
            [self.frame.0.clone(), Bytes::new(), Bytes::new()]
        } else {
            framed(event, self.json())
        }
    }

    pub(crate) fn label(&self, key: &str) -> Option<&str> {
        self.labels
            .iter()
            .find(|(label, _)| label == key)
            .map(|(_, value)| value.as_str())
    }

    /// The value that field selectors see; `name` is one of the kind's, or of `metadata.name` and `metadata.namespace`.
    pub(crate) fn field(&self, name: &str) -> &str {
        match name {
            "metadata.name" => &self.key.name,
            "metadata.namespace" => &self.key.namespace,
            name => match self.fields.iter().find(|(field, _)| *field == name) {
                Some((_, value)) => value,
                // What a selector compares with when the object does not have the field.
                None if matches!(name, "spec.hostNetwork" | "spec.unschedulable") => "false",
                None => "",
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn json_and_frame_share_their_bytes() {
        let value = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "a", "namespace": "n"}, "data": {"k": "v"},
        });
        let object = Object::new(ApiKind::ConfigMap, value, 7, EventType::Added);
        let (json, [frame, ..]) = (object.json(), object.frame(EventType::Added));
        assert!(frame.as_ptr_range().contains(&json.as_ptr()));
        let rest =
            r#""data":{"k":"v"},"metadata":{"name":"a","namespace":"n","resourceVersion":"7"}}"#;
        assert_eq!(
            json,
            format!(r#"{{"kind":"ConfigMap","apiVersion":"v1",{rest}"#)
        );
        assert_eq!(object.item(), rest);
        assert!(frame.as_ptr_range().contains(&object.item().as_ptr()));
        for (event, name) in [
            (EventType::Added, "ADDED"),
            (EventType::Modified, "MODIFIED"),
            (EventType::Deleted, "DELETED"),
        ] {
            let pieces = object.frame(event);
            let frame: Value = serde_json::from_slice(&pieces.concat()).unwrap();
            assert_eq!(frame["type"], name);
            assert_eq!(frame["object"]["data"]["k"], "v");
            let shares = |piece: &Bytes| piece.as_ptr_range().contains(&json.as_ptr());
            assert!(pieces.iter().any(shares), "{event:?}");
        }
    }

    #[test]
    fn debug_shows_no_content() {
        let value = json!({"metadata": {"name": "a"}, "data": {"k": "aHVudGVyMg=="}});
        let object = Object::new(ApiKind::Secret, value, 7, EventType::Added);
        assert!(!format!("{object:?}").contains("aHVudGVyMg"));
    }
}
