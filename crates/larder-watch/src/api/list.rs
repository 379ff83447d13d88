//! The response to a list, read item by item: only one item is in memory, regardless of the length of the list.

use larder_objects::ResourceVersion;
use memchr::memchr2;
use serde::{Deserialize, de::IgnoredAny};

use crate::{
    bounds::{FRAME_BYTES, OBJECT_BYTES},
    buffer::Buffer,
    error::RequestError,
};

/// The metadata of a list.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ListMeta {
    pub(super) resource_version: ResourceVersion,
    pub(super) r#continue: String,
}

/// Cuts the items out of a list as its bytes come in. It finds the ends of items only; a JSON parser decodes them.
pub(super) struct Splitter {
    /// The list without its items.
    frame: Buffer,
    item: Buffer,
    /// Arrays and objects that are open.
    depth: usize,
    in_string: bool,
    escaped: bool,
    /// The array of items is open.
    in_items: bool,
    /// How many first bytes of `items` the last string at the top level is; `None` for another text.
    name: Option<usize>,
}

/// The context of a byte.
#[derive(Clone, Copy)]
enum JsonRegion {
    Frame,
    AmongItems,
    Item,
}

const ITEMS: &[u8] = b"items";
/// The depth inside the array of items.
const AMONG_ITEMS: usize = 2;

impl Splitter {
    pub(super) fn new(secret: bool) -> Self {
        Self {
            frame: Buffer::new(secret, FRAME_BYTES),
            item: Buffer::new(secret, OBJECT_BYTES),
            depth: 0,
            in_string: false,
            escaped: false,
            in_items: false,
            name: None,
        }
    }

    /// Takes in the next bytes and passes on every item that they complete.
    ///
    /// # Errors
    ///
    /// An item or the rest is longer than the limit, or an item was refused.
    pub(super) fn push(
        &mut self,
        data: &[u8],
        mut take: impl FnMut(&[u8]) -> Result<(), RequestError>,
    ) -> Result<(), RequestError> {
        // What begins here has not been pushed yet.
        let mut start = 0;
        let mut at = 0;
        while let Some(&byte) = data.get(at) {
            if self.in_string && self.depth > 1 && !self.escaped {
                // Nearly all bytes are in here.
                match memchr2(b'"', b'\\', &data[at..]) {
                    None => break,
                    Some(rest) if rest > 0 => {
                        at += rest;
                        continue;
                    }
                    Some(_) => {}
                }
            }
            let before = self.region();
            self.step(byte);
            match (before, self.region()) {
                (JsonRegion::Frame, JsonRegion::AmongItems) => {
                    self.frame.push(&data[start..=at])?;
                    start = at + 1;
                }
                (JsonRegion::AmongItems, _) => start = at,
                (JsonRegion::Item, JsonRegion::AmongItems) => {
                    self.item.push(&data[start..=at])?;
                    take(&self.item)?;
                    self.item.consume(self.item.len());
                    start = at + 1;
                }
                _ => {}
            }
            at += 1;
        }
        match self.region() {
            JsonRegion::Frame => self.frame.push(&data[start..]),
            JsonRegion::Item => self.item.push(&data[start..]),
            // Commas.
            JsonRegion::AmongItems => Ok(()),
        }
    }

    /// The metadata of the list, once all of it was pushed.
    ///
    /// # Errors
    ///
    /// The response is not a list.
    pub(super) fn finish(self) -> Result<ListMeta, RequestError> {
        #[derive(Deserialize)]
        struct Frame {
            metadata: ListMeta,
            /// Without it, it is no list; some write an empty one as `null`.
            #[serde(rename = "items")]
            _items: IgnoredAny,
        }
        let no_list = |_| RequestError::Unexpected("no list of objects");
        let frame: Frame = serde_json::from_slice(&self.frame).map_err(no_list)?;
        Ok(frame.metadata)
    }

    fn region(&self) -> JsonRegion {
        match self.depth {
            _ if !self.in_items => JsonRegion::Frame,
            AMONG_ITEMS => JsonRegion::AmongItems,
            _ => JsonRegion::Item,
        }
    }

    fn step(&mut self, byte: u8) {
        if self.in_string {
            if self.depth == 1 && byte != b'"' {
                let is_next = |length: &usize| ITEMS.get(*length) == Some(&byte);
                self.name = self.name.filter(is_next).map(|length| length + 1);
            }
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => self.in_string = false,
                _ => {}
            }
            return;
        }
        match byte {
            b'"' => {
                self.in_string = true;
                self.name = Some(0);
            }
            b'[' | b'{' => {
                let is_items = self.depth == 1 && self.name == Some(ITEMS.len());
                self.in_items |= byte == b'[' && is_items;
                self.depth += 1;
            }
            b']' | b'}' => {
                self.in_items &= self.depth > AMONG_ITEMS;
                self.depth = self.depth.saturating_sub(1);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The items of `text` pushed in chunks of `size`, and what the list says of itself.
    fn split(text: &str, size: usize) -> Result<(Vec<String>, String, String), RequestError> {
        let mut splitter = Splitter::new(true);
        let mut items = Vec::new();
        for chunk in text.as_bytes().chunks(size) {
            splitter.push(chunk, |item| {
                items.push(String::from_utf8(item.to_vec()).unwrap());
                Ok(())
            })?;
        }
        let meta = splitter.finish()?;
        Ok((items, meta.resource_version.to_string(), meta.r#continue))
    }

    const LIST: &str = r#"{"kind":"SecretList","apiVersion":"v1","x":{"items":[{"not":"mine"}]},
        "metadata":{"resourceVersion":"7","continue":"a]b\"{"}, "items" : [
        {"a":"}]\"","b":[{}]} , {"items":[{"c":1}]},{}
        ], "later": [1,{"y":"items"}]}"#;

    #[test]
    fn items_come_one_by_one_whatever_the_chunks() {
        for size in 1..LIST.len() {
            let (items, version, page) = split(LIST, size).unwrap();
            assert_eq!(
                items,
                [r#"{"a":"}]\"","b":[{}]}"#, r#"{"items":[{"c":1}]}"#, "{}"],
                "chunks of {size}"
            );
            assert_eq!((version.as_str(), page.as_str()), ("7", "a]b\"{"));
        }
    }

    #[test]
    fn an_empty_list_has_no_items_however_it_is_written() {
        for items in ["[]", "null", "[ ]"] {
            let text = format!(r#"{{"metadata":{{"resourceVersion":"7"}},"items":{items}}}"#);
            assert_eq!(split(&text, 3).unwrap().0, Vec::<String>::new());
        }
    }

    #[test]
    fn an_answer_without_a_list_is_rejected_unquoted() {
        let cut = &LIST[..LIST.len() - 30];
        for text in [
            cut,
            "",
            "[]",
            "hunter2",
            r#"{"kind":"Secret","data":{"k":"hunter2"}}"#,
        ] {
            let error = split(text, 5).unwrap_err();
            assert!(matches!(error, RequestError::Unexpected(_)), "{error:?}");
        }
    }

    #[test]
    fn an_endless_item_is_rejected() {
        let text = format!("{{\"items\":[{{\"a\":\"{}", "x".repeat(OBJECT_BYTES));
        let error = split(&text, 1 << 16).unwrap_err();
        assert!(matches!(error, RequestError::TooLong { .. }), "{error:?}");
    }
}
