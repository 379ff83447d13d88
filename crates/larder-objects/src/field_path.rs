//! Paths of fields within an object.
//!
//! Invariant: a path stays a list of segments until it is displayed. A key may hold any text, so a displayed path
//! cannot be split again.

use std::fmt;

use smol_str::SmolStr;

/// The path of a field, as Kubernetes' own `field.Path`. Displays as `spec.volumes[0].name`, `data[tls.crt]`.
///
/// ```
/// use larder_objects::FieldPath;
///
/// let volume = FieldPath::fields("spec.volumes").index(0);
/// assert_eq!(volume.child("name").to_string(), "spec.volumes[0].name");
/// assert_eq!(FieldPath::fields("data").key("tls.crt").to_string(), "data[tls.crt]");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FieldPath(Vec<PathSegment>);

/// One segment of a [`FieldPath`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PathSegment {
    /// A field of the API: `.name`.
    Field(SmolStr),
    /// A key of a map whose keys the user chooses: `[name]`.
    Key(SmolStr),
    /// A position in a list, from 0: `[0]`.
    Index(usize),
}

impl FieldPath {
    /// The path of the whole object; displays as nothing.
    pub fn root() -> Self {
        Self::default()
    }

    /// The path of nested fields, written with dots: `spec.template`.
    pub fn fields(names: &'static str) -> Self {
        let names = names.split('.').filter(|name| !name.is_empty());
        Self(names.map(|name| PathSegment::Field(name.into())).collect())
    }

    /// The field `name` of this one.
    #[must_use]
    pub fn child(&self, name: &str) -> Self {
        self.with(PathSegment::Field(name.into()))
    }

    /// The entry `key` of this map.
    #[must_use]
    pub fn key(&self, key: &str) -> Self {
        self.with(PathSegment::Key(key.into()))
    }

    /// The item at `index`, from 0, of this list.
    #[must_use]
    pub fn index(&self, index: usize) -> Self {
        self.with(PathSegment::Index(index))
    }

    /// This path followed by `rest`.
    #[must_use]
    pub fn join(&self, rest: &Self) -> Self {
        Self(self.0.iter().chain(&rest.0).cloned().collect())
    }

    /// From the outermost segment to the innermost.
    pub fn segments(&self) -> &[PathSegment] {
        &self.0
    }

    fn with(&self, segment: PathSegment) -> Self {
        let mut segments = Vec::with_capacity(self.0.len() + 1);
        segments.extend_from_slice(&self.0);
        segments.push(segment);
        Self(segments)
    }
}

impl From<&'static str> for FieldPath {
    fn from(names: &'static str) -> Self {
        Self::fields(names)
    }
}

impl From<&Self> for FieldPath {
    fn from(path: &Self) -> Self {
        path.clone()
    }
}

impl FromIterator<PathSegment> for FieldPath {
    fn from_iter<T: IntoIterator<Item = PathSegment>>(segments: T) -> Self {
        Self(segments.into_iter().collect())
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, segment) in self.0.iter().enumerate() {
            match segment {
                PathSegment::Field(name) if place == 0 => f.write_str(name)?,
                PathSegment::Field(name) => write!(f, ".{name}")?,
                PathSegment::Key(key) => write!(f, "[{key}]")?,
                PathSegment::Index(index) => write!(f, "[{index}]")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_display_as_the_api_server_writes_them() {
        let item = FieldPath::fields("spec.volumes").index(10);
        assert_eq!(item.child("secret").to_string(), "spec.volumes[10].secret");
        assert_eq!(FieldPath::root().to_string(), "");
        let entry = FieldPath::fields("data").key("a].b[");
        assert_eq!(entry.to_string(), "data[a].b[]");
    }

    #[test]
    fn join_appends_the_segments_of_the_other_path() {
        let template = FieldPath::fields("spec.template");
        let image = FieldPath::fields("spec.containers").index(0).child("image");
        assert_eq!(
            template.join(&image).to_string(),
            "spec.template.spec.containers[0].image"
        );
        assert_eq!(FieldPath::root().join(&image), image);
    }
}
