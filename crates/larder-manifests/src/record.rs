//! What has been accepted so far, for the next start: one file under the root directory of the agent.
//!
//! Invariants:
//! 1. It says what may not replace what is delivered, and brings nothing back: it has names, and of immutable data a
//!    digest with a salt of its own, but no value.
//! 2. The file is the old one or the new one, with mode 0600. It is not synced: one that a power cut has torn is no JSON.
//! 3. One that is damaged or has another form counts as none. One that cannot be written holds up nothing.

use std::{
    collections::BTreeMap,
    io,
    os::fd::{AsFd as _, OwnedFd},
    path::Path,
    sync::Arc,
    time::Duration,
};

use larder_files::{regular_file::read_open, replace::replace_file, sys};
use larder_objects::{ObjectKey, manifest::RawObject};
use ring::{hmac, rand};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use smol_str::SmolStr;
use tokio::{sync::watch, task::spawn_blocking, time::timeout};
use tracing::warn;

use crate::object_id::ObjectId;

/// Format and version of the file.
const FORM: &str = "larder/accepted/1";
/// Longest file that is read, in bytes: a hundred thousand objects.
const MAX_BYTES: usize = 32 << 20;
/// Time after a failed write.
const RETRY: Duration = Duration::from_mins(1);

/// The objects that have been accepted.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    salt: String,
    objects: BTreeMap<ObjectId, Accepted>,
}

/// An object that has been accepted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Accepted {
    /// Name of the file that it is of.
    pub(crate) file: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) has_unknown_fields: bool,
    /// Of its data, if it is immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) digest: Option<String>,
}

/// The content of the file.
#[derive(Serialize, Deserialize)]
struct Stored {
    form: String,
    salt: String,
    objects: Vec<Entry>,
}

#[derive(Serialize, Deserialize)]
struct Entry {
    kind: SmolStr,
    namespace: SmolStr,
    name: SmolStr,
    #[serde(flatten)]
    accepted: Accepted,
}

impl Default for Record {
    /// That of a first start.
    fn default() -> Self {
        let salt = rand::generate::<[u8; 16]>(&rand::SystemRandom::new());
        Self {
            salt: hex(&salt.expect("the kernel has random numbers").expose()),
            objects: BTreeMap::new(),
        }
    }
}

impl Record {
    /// The objects, with what is known of them.
    pub(crate) fn objects(&self) -> impl Iterator<Item = (&ObjectId, &Accepted)> {
        self.objects.iter()
    }

    /// What makes its digests.
    pub(crate) fn digester(&self) -> Digester {
        Digester(hmac::Key::new(hmac::HMAC_SHA256, self.salt.as_bytes()))
    }

    /// Takes up what is `accepted` now; whether that is news. Of an object that the server rejects, its last good version
    /// was accepted.
    pub(crate) fn take_up(
        &mut self,
        accepted: BTreeMap<ObjectId, Accepted>,
        is_rejected: impl Fn(&ObjectId) -> bool,
    ) -> bool {
        let last_good = |(id, now): (ObjectId, Accepted)| {
            if !is_rejected(&id) {
                return Some((id, now));
            }
            let file = now.file;
            let before = self.objects.get(&id)?.clone();
            Some((id, Accepted { file, ..before }))
        };
        let objects = accepted.into_iter().filter_map(last_good).collect();
        let is_news = self.objects != objects;
        self.objects = objects;
        is_news
    }

    fn parse(text: &[u8]) -> Option<Self> {
        let Stored {
            form,
            salt,
            objects,
        } = serde_json::from_slice(text).ok()?;
        let object = |entry: Entry| {
            let kind = entry.kind;
            let key = ObjectKey::new(entry.namespace, entry.name);
            (ObjectId { kind, key }, entry.accepted)
        };
        (form == FORM).then(|| Self {
            salt,
            objects: objects.into_iter().map(object).collect(),
        })
    }

    fn to_text(&self) -> String {
        let entry = |(id, accepted): (&ObjectId, &Accepted)| Entry {
            kind: id.kind.clone(),
            namespace: id.key.namespace.clone(),
            name: id.key.name.clone(),
            accepted: accepted.clone(),
        };
        let stored = Stored {
            form: FORM.to_owned(),
            salt: self.salt.clone(),
            objects: self.objects.iter().map(entry).collect(),
        };
        serde_json::to_string(&stored).expect("its keys are texts")
    }
}

/// Makes the digests of a record.
#[derive(Clone, Debug)]
pub(crate) struct Digester(hmac::Key);

impl Digester {
    /// The digest of what may not change; `None` for an object whose data may.
    pub(crate) fn digest(&self, object: &RawObject) -> Option<String> {
        let has_data = matches!(object.text("/kind"), "ConfigMap" | "Secret");
        if !has_data || object["immutable"] != true {
            return None;
        }
        let mut context = hmac::Context::with_key(&self.0);
        // Each with its length, so that other data is other text.
        let mut update = |part: &str| {
            context.update(&part.len().to_be_bytes());
            context.update(part.as_bytes());
        };
        update(object.text("/type"));
        for field in ["data", "binaryData"] {
            for (key, value) in object[field].as_object().into_iter().flatten() {
                update(field);
                update(key);
                update(value.as_str().unwrap_or_default());
            }
        }
        let tag = context.sign();
        tag.as_ref().first_chunk().map(hex)
    }
}

fn hex(bytes: &[u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(*bytes))
}

/// The file of a record. This waits for the disk.
#[derive(Debug)]
pub(crate) struct RecordFile {
    directory: OwnedFd,
    name: String,
}

impl RecordFile {
    /// The file at `path`, which need not be there, and its record.
    pub(crate) fn open(path: &Path) -> io::Result<(Self, Record)> {
        let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Errno::ISDIR.into());
        };
        let this = Self {
            directory: sys::open_root(directory)?,
            name: name.to_string_lossy().into_owned(),
        };
        let record = this.read(path);
        Ok((this, record))
    }

    fn read(&self, path: &Path) -> Record {
        let opened = sys::open_regular(self.directory.as_fd(), &*self.name);
        let read = opened.and_then(|(file, stat)| read_open(&file, &stat, MAX_BYTES));
        let error = match read {
            Err(Errno::NOENT) => return Record::default(),
            Err(errno) => errno.to_string(),
            Ok(text) => match Record::parse(&text) {
                Some(record) => return record,
                None => "damaged, or of another version".to_owned(),
            },
        };
        let path = path.display();
        warn!(error, %path, "cannot use the record of accepted manifests, taking this for a first start");
        Record::default()
    }

    fn write(&self, record: &Record) -> io::Result<()> {
        let aside = format!("{}.new", self.name);
        let text = record.to_text();
        let directory = self.directory.as_fd();
        Ok(replace_file(
            directory,
            &self.name,
            &aside,
            0o600,
            text.as_bytes(),
        )?)
    }
}

/// Reads the record at `path`. Without the file it is that of a first start.
pub(crate) async fn recall(path: Option<&Path>) -> (Option<RecordFile>, Record) {
    let Some(path) = path.map(Path::to_owned) else {
        return (None, Record::default());
    };
    let shown = path.display().to_string();
    let opened = spawn_blocking(move || RecordFile::open(&path)).await;
    match opened.map_err(io::Error::other).flatten() {
        Ok((file, record)) => (Some(file), record),
        Err(error) => {
            warn!(%error, path = shown, "cannot keep a record of accepted manifests");
            (None, Record::default())
        }
    }
}

/// Writes each change of the record to its file. Runs until the record is dropped.
pub(crate) async fn keep(file: RecordFile, mut record: watch::Receiver<Record>) {
    let file = Arc::new(file);
    let mut has_failed = false;
    loop {
        // Cancel-safe, as the change is seen only when this returns.
        let changed = record.changed();
        let changed = if has_failed {
            timeout(RETRY, changed).await.unwrap_or(Ok(()))
        } else {
            changed.await
        };
        if changed.is_err() {
            return;
        }
        let (file, content) = (Arc::clone(&file), record.borrow_and_update().clone());
        let written = spawn_blocking(move || file.write(&content)).await;
        let failed = written.map_err(io::Error::other).flatten().err();
        if let Some(error) = failed.as_ref().filter(|_| !has_failed) {
            warn!(%error, "cannot write the record of accepted manifests, will retry");
        }
        has_failed = failed.is_some();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::{PermissionsExt as _, symlink},
    };

    use serde_json::{Value, json};

    use super::*;

    fn id(name: &str) -> ObjectId {
        ObjectId {
            kind: "Secret".into(),
            key: ObjectKey::new("n", name),
        }
    }

    fn accepted(file: &str, digest: Option<&str>) -> Accepted {
        Accepted {
            file: file.to_owned(),
            has_unknown_fields: false,
            digest: digest.map(str::to_owned),
        }
    }

    fn of(objects: &[(&str, Accepted)]) -> BTreeMap<ObjectId, Accepted> {
        let object = |(name, accepted): &(&str, Accepted)| (id(name), accepted.clone());
        objects.iter().map(object).collect()
    }

    #[test]
    fn a_record_is_read_as_it_was_written_and_for_its_user_alone() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("r");
        let (file, mut record) = RecordFile::open(&path).unwrap();
        let objects = of(&[("a", accepted("f", None)), ("b", accepted("f", Some("d")))]);
        assert!(record.take_up(objects.clone(), |_| false));
        assert!(!record.take_up(objects.clone(), |_| false));
        file.write(&record).unwrap();
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o7777,
            0o600
        );
        let (_, read) = RecordFile::open(&path).unwrap();
        assert_eq!((&read.salt, &read.objects), (&record.salt, &objects));
    }

    #[test]
    fn what_is_no_record_is_a_first_start() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("r");
        let (file, mut record) = RecordFile::open(&path).unwrap();
        record.take_up(of(&[("a", accepted("f", None))]), |_| false);
        file.write(&record).unwrap();
        let whole = fs::read_to_string(&path).unwrap();
        let other = whole.replace(FORM, "larder/accepted/2");
        for text in ["", &whole[..whole.len() - 1], &other, "\0\0", "[]"] {
            fs::write(&path, text).unwrap();
            assert_eq!(
                RecordFile::open(&path).unwrap().1.objects().count(),
                0,
                "{text}"
            );
        }
        fs::rename(&path, root.path().join("elsewhere")).unwrap();
        symlink("elsewhere", &path).unwrap();
        assert_eq!(RecordFile::open(&path).unwrap().1.objects().count(), 0);
    }

    #[test]
    fn what_the_server_rejects_stays_as_it_was_accepted() {
        let mut record = Record::default();
        let rejects_b = |id: &ObjectId| id.key.name == "b";
        let now = |a, b| of(&[("a", accepted("f", a)), ("b", accepted("g", b))]);
        record.take_up(now(None, None), rejects_b);
        assert_eq!(record.objects, of(&[("a", accepted("f", None))]));
        record.take_up(now(None, Some("1")), |_| false);
        record.take_up(now(Some("2"), Some("2")), rejects_b);
        assert_eq!(record.objects, now(Some("2"), Some("1")));
    }

    #[test]
    fn a_digest_is_of_immutable_data_and_of_one_record() {
        let digester = Record::default().digester();
        let secret = |data: Value, is_immutable: bool| {
            RawObject::new(json!({"kind": "Secret", "data": data, "immutable": is_immutable}))
        };
        let digest = |data: Value| digester.digest(&secret(data, true)).unwrap();
        assert_eq!(digester.digest(&secret(json!({"k": "v"}), false)), None);
        assert_eq!(
            digest(json!({"a": "b", "c": ""})),
            digest(json!({"c": "", "a": "b"}))
        );
        assert_ne!(digest(json!({"a": "bc"})), digest(json!({"ab": "c"})));
        assert_ne!(
            digest(json!({"a": "b"})),
            digest(json!({"a": "b", "c": ""}))
        );
        let other = Record::default().digester();
        let same = secret(json!({"a": "b"}), true);
        assert_ne!(digester.digest(&same), other.digest(&same));
    }
}
