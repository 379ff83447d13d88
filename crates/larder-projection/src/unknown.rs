//! Terms: what a variable or a file is, as a function of what is not known.
//!
//! Facts that only a running pod has, and objects that are kept elsewhere, have no bytes yet. A projection computes with
//! them all the same: a value is a text with gaps (`http://$(status.podIP):80`), and what decides whether a name or a key
//! is there is a [`Question`]. The bytes of the kubelet are the case without gaps and questions, from the same code.
//!
//! Invariants:
//! 1. A [`UnknownSource`] is equal to itself wherever it occurs, whatever it is; so is the answer to a question. Both carry
//!    what is known to make them, so two of different makers are two.
//! 2. Equal terms are equal for each way to fill them in. The reverse is decided by [`Unknown::settled`], for given
//!    answers, and for the gaps that are left by [`Sameness::of`], or by [`may_all_be_equal`] for several at once.
//! 3. Layers are a list, and a term has at most [`MAX_DEPTH`] of them inside each other: a walk never runs out of stack.

mod any_keys;
mod conditions;
mod equations;
mod sameness;
mod selection;

use std::{fmt, net::IpAddr, sync::Arc};

use larder_objects::{Kind, SecretBytes, manifest::Recipe};

pub use self::{
    any_keys::{ANY_KEY, AnyKeys},
    equations::may_all_be_equal,
    sameness::Sameness,
};

/// Most layers inside each other. References make them: `A` may be `$(B)`, which may be `$(C)`.
pub(crate) const MAX_DEPTH: usize = 64;
/// About what a part takes beside its text.
const PART: usize = 64;

/// An object that is not known, or only in part.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId {
    /// ConfigMap or Secret.
    pub kind: Kind,
    /// Its name, in the namespace of the pod.
    pub name: Arc<str>,
    /// What makes its keys that are not known: another one may make others. Empty if unknown.
    pub recipe: Recipe,
}

/// `secret shop-tls`
impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind.singular(), self.name)
    }
}

/// A question whose answer is not known, the same wherever it is asked.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Question {
    /// Whether the object is there.
    Exists(ObjectId),
    /// Whether the object is there, and has this key.
    HasKey(ObjectId, Arc<str>),
    /// Whether something is there that only a cluster has: `ClusterTrustBundle ca`.
    Fact(Arc<str>),
}

impl Question {
    /// Whether an object is there, whatever makes its keys.
    pub fn existence(object: &ObjectId) -> Self {
        Self::Exists(ObjectId {
            recipe: Recipe::default(),
            ..object.clone()
        })
    }

    /// The ConfigMap or Secret that it is about.
    pub fn object(&self) -> Option<&ObjectId> {
        match self {
            Self::Exists(object) | Self::HasKey(object, _) => Some(object),
            Self::Fact(_) => None,
        }
    }

    /// What it is about: `secret shop-tls`.
    pub fn subject(&self) -> String {
        match self {
            Self::Exists(object) | Self::HasKey(object, _) => object.to_string(),
            Self::Fact(what) => what.to_string(),
        }
    }
}

/// `secret shop-tls key password`
impl fmt::Display for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exists(object) => write!(f, "{object}"),
            Self::HasKey(object, key) => write!(f, "{object} key {key}"),
            Self::Fact(what) => f.write_str(what),
        }
    }
}

/// What the bytes of a source look like, if that is known: then there are some.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Form {
    Any,
    /// Letters, digits, `.`, `-` and `_`: a name, a UID, or the value of a label.
    Name,
    /// IP addresses, separated by commas.
    Address,
    Number,
    /// PEM blocks, as the kubelet encodes them: nothing stands before the first one.
    Pem,
}

impl Form {
    /// Whether something of each form may be the same.
    fn may_be_equal(self, other: Self) -> bool {
        let may_be_name = |form| matches!(form, Self::Address | Self::Number);
        match (self, other) {
            (Self::Any, _) | (_, Self::Any) => true,
            (Self::Name, form) | (form, Self::Name) if may_be_name(form) => true,
            _ => self == other,
        }
    }

    /// Whether a part of it may be of the other form.
    fn may_contain(self, other: Self) -> bool {
        self.may_be_equal(other)
            || matches!(
                (self, other),
                (Self::Pem, _) | (Self::Address, Self::Number)
            )
    }

    fn is_of_few_bytes(self) -> bool {
        matches!(self, Self::Name | Self::Address | Self::Number)
    }

    fn may_have(self, byte: u8) -> bool {
        match self {
            Self::Any | Self::Pem => true,
            Self::Name => byte.is_ascii_alphanumeric() || b".-_".contains(&byte),
            Self::Address => byte.is_ascii_hexdigit() || b".:,".contains(&byte),
            Self::Number => byte.is_ascii_digit(),
        }
    }
}

/// The source of an unknown value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnknownSource {
    /// `status.podIP`, or `secret shop-tls`.
    pub what: Arc<str>,
    /// What of it: ` key tls.crt`; empty for all of it.
    detail: Arc<str>,
    /// The kind of the object; `None` for a fact that only the running pod has.
    pub object: Option<Kind>,
    /// What makes it; empty if unknown.
    recipe: Recipe,
    form: Form,
    /// What its bytes begin with; there are more.
    prefix: Arc<str>,
}

impl UnknownSource {
    pub(crate) fn fact(what: impl Into<Arc<str>>, form: Form) -> Self {
        Self {
            what: what.into(),
            detail: "".into(),
            object: None,
            recipe: Recipe::default(),
            form,
            prefix: "".into(),
        }
    }

    /// The same of another maker.
    #[must_use]
    pub(crate) fn made_by(mut self, recipe: Recipe) -> Self {
        self.recipe = recipe;
        self
    }

    /// The same, of bytes that begin with `prefix`, and are more.
    #[must_use]
    pub(crate) fn beginning_with(mut self, prefix: &str) -> Self {
        self.prefix = prefix.into();
        self
    }

    pub(crate) fn number(what: &str, detail: String) -> Self {
        Self {
            detail: detail.into(),
            ..Self::fact(what, Form::Number)
        }
    }

    /// A file of the certificate that a signer issues for a pod.
    pub(crate) fn pod_certificate(signer: &str, file: &str) -> Self {
        Self {
            detail: file.into(),
            ..Self::fact(format!("pod certificate of {signer}"), Form::Pem)
        }
    }

    /// What a reference to a variable of a Service becomes that may exist: its value, or the reference itself.
    pub(crate) fn service(name: &str, variable: &str) -> Self {
        Self {
            recipe: Recipe::new(variable),
            ..Self::fact(format!("service {name}"), Form::Any)
        }
    }

    /// The whole of an object.
    pub(crate) fn object(id: &ObjectId) -> Self {
        Self {
            object: Some(id.kind),
            recipe: id.recipe.clone(),
            ..Self::fact(id.to_string(), Form::Any)
        }
    }

    /// The value of a key, which `recipe` makes.
    pub(crate) fn key(id: &ObjectId, key: &str, recipe: &Recipe) -> Self {
        Self {
            detail: format!(" key {}", key.replace(ANY_KEY, "*")).into(),
            recipe: recipe.clone(),
            ..Self::object(id)
        }
    }

    fn len(&self) -> usize {
        PART + self.what.len() + self.detail.len()
    }

    /// Whether its bytes may be those of the other one.
    fn may_equal(&self, other: &Self) -> bool {
        let (one, another) = (self.prefix.as_bytes(), other.prefix.as_bytes());
        let have_one_beginning = one.starts_with(another) || another.starts_with(one);
        have_one_beginning
            && self.form.may_be_equal(other.form)
            && one.iter().all(|byte| other.form.may_have(*byte))
            && another.iter().all(|byte| self.form.may_have(*byte))
    }

    /// Whether it may be a part of something of this form.
    fn may_be_in(&self, form: Form) -> bool {
        let mut prefix = self.prefix.bytes();
        form.may_contain(self.form) && prefix.all(|byte| form.may_have(byte))
    }

    /// Whether its bytes may be `text`.
    fn may_be(&self, text: &[u8]) -> bool {
        let is_address = |text: &str| text.parse::<IpAddr>().is_ok();
        let rest = text.strip_prefix(self.prefix.as_bytes());
        if rest.is_none_or(|rest| rest.is_empty() && !self.prefix.is_empty()) {
            return false;
        }
        match self.form {
            Form::Any => true,
            Form::Name => !text.is_empty() && text.iter().all(|byte| Form::Name.may_have(*byte)),
            Form::Address => str::from_utf8(text).is_ok_and(|all| all.split(',').all(is_address)),
            Form::Number => !text.is_empty() && text.iter().all(u8::is_ascii_digit),
            Form::Pem => text.starts_with(b"-----BEGIN "),
        }
    }
}

impl fmt::Display for UnknownSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.what, self.detail)
    }
}

/// What an unknown value is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown(Vec<ValuePart>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum ValuePart {
    /// May be of a Secret.
    Text(SecretBytes),
    Source(UnknownSource),
    Layers(Box<Layers>),
}

/// The value of the last layer whose question is answered with yes; the one below them if there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Layers {
    /// `None` if nothing is below.
    below: Option<Unknown>,
    layers: Vec<(Question, Unknown)>,
}

impl Unknown {
    pub(crate) fn of(source: UnknownSource) -> Self {
        Self(vec![ValuePart::Source(source)])
    }

    /// A fact that only the cluster has.
    pub(crate) fn of_fact(what: impl Into<Arc<str>>) -> Self {
        Self::of(UnknownSource::fact(what, Form::Any))
    }

    /// A value that is known.
    pub fn of_text(text: &[u8]) -> Self {
        Self::joined([Ok(text)].into_iter())
    }

    /// `value` if `question` is answered with yes, else what is `below`, which may be nothing.
    pub fn layered(below: Option<Self>, question: Question, value: Self) -> Self {
        let mut layers = match below {
            Some(Self(mut parts)) if matches!(parts[..], [ValuePart::Layers(_)]) => {
                match parts.pop() {
                    Some(ValuePart::Layers(layers)) => layers,
                    _ => unreachable!("it is the only part"),
                }
            }
            below => Box::new(Layers {
                below,
                layers: Vec::new(),
            }),
        };
        // The answer to the same question makes no difference any more. An earlier one is only hidden: a search for it would
        // cost the square of the layers.
        layers.layers.pop_if(|(asked, _)| *asked == question);
        layers.layers.push((question, value));
        Self(vec![ValuePart::Layers(layers)])
    }

    /// Whether nothing may be there.
    pub fn may_be_absent(&self) -> bool {
        matches!(&self.0[..], [ValuePart::Layers(layers)]
            if layers.below.as_ref().is_none_or(Self::may_be_absent))
    }

    /// This value, or `other` where nothing is there.
    pub(crate) fn or(mut self, other: Self) -> Self {
        if let [ValuePart::Layers(layers)] = &mut self.0[..] {
            match layers.below.take() {
                None => layers.below = Some(other),
                Some(below) => layers.below = Some(below.or(other)),
            }
        }
        self
    }

    /// Both, with a comma between them; this one if there is no other.
    pub(crate) fn listed_after(self, before: Option<&Self>) -> Self {
        match before {
            Some(before) => Self::joined([Err(before), Ok(&b", "[..]), Err(&self)].into_iter()),
            None => self,
        }
    }

    /// The value that `parts` make, one after the other; text is known.
    pub(crate) fn joined<'p>(parts: impl Iterator<Item = Result<&'p [u8], &'p Self>>) -> Self {
        let mut joiner = Joiner::default();
        for part in parts {
            match part {
                Ok(known) => joiner.text.push(known),
                Err(unknown) => unknown.0.iter().for_each(|part| joiner.push(part)),
            }
        }
        joiner.finish()
    }

    /// What is there if each question is answered so; `None` if nothing is. Has no question in it.
    pub fn settled(&self, is_true: &dyn Fn(&Question) -> bool) -> Option<Self> {
        let mut chosen = Vec::new();
        let is_there = self.choose(is_true, &mut chosen);
        let mut joiner = Joiner::default();
        for part in chosen {
            joiner.push(part);
        }
        is_there.then(|| joiner.finish())
    }

    /// Collects the parts that are there; `false` if nothing is.
    fn choose<'u>(
        &'u self,
        is_true: &dyn Fn(&Question) -> bool,
        chosen: &mut Vec<&'u ValuePart>,
    ) -> bool {
        let mut is_there = true;
        for part in &self.0 {
            let ValuePart::Layers(layers) = part else {
                chosen.push(part);
                continue;
            };
            let value = layers
                .layers
                .iter()
                .rev()
                .find(|(question, _)| is_true(question))
                .map(|(_, value)| value);
            is_there &= match value.or(layers.below.as_ref()) {
                Some(value) => value.choose(is_true, chosen),
                None => false,
            };
        }
        is_there
    }

    /// Its sources, in order.
    pub fn sources(&self) -> impl Iterator<Item = &UnknownSource> {
        let mut sources = Vec::new();
        self.walk(&mut |part| {
            if let ValuePart::Source(source) = part {
                sources.push(source);
            }
        });
        sources.into_iter()
    }

    /// The questions that decide what it is made of.
    pub fn questions(&self) -> impl Iterator<Item = &Question> {
        let mut questions = Vec::new();
        self.walk(&mut |part| {
            if let ValuePart::Layers(layers) = part {
                questions.extend(layers.layers.iter().map(|(question, _)| question));
            }
        });
        questions.into_iter()
    }

    /// Visits all parts, the top layer first.
    fn walk<'u>(&'u self, visit: &mut dyn FnMut(&'u ValuePart)) {
        for part in &self.0 {
            visit(part);
            if let ValuePart::Layers(layers) = part {
                layers
                    .layers
                    .iter()
                    .rev()
                    .map(|(_, value)| value)
                    .chain(&layers.below)
                    .for_each(|value| value.walk(visit));
            }
        }
    }

    /// Its texts and gaps, in order; of a value in which no question is left ([`Self::settled`]).
    pub fn parts(&self) -> impl Iterator<Item = Result<&[u8], &UnknownSource>> {
        self.0.iter().filter_map(|part| match part {
            ValuePart::Text(text) => Some(Ok(&**text)),
            ValuePart::Source(source) => Some(Err(source)),
            ValuePart::Layers(_) => None,
        })
    }

    /// How many layers are inside each other.
    pub(crate) fn depth(&self) -> usize {
        let depths = self.0.iter().map(|part| match part {
            ValuePart::Layers(layers) => {
                let values = layers.layers.iter().map(|(_, value)| value);
                let inner = values.chain(&layers.below).map(Self::depth);
                1 + inner.max().unwrap_or(0)
            }
            _ => 0,
        });
        depths.max().unwrap_or(0)
    }

    /// `status.podIP`, or with text around it `http://$(status.podIP):80`. Has the text of Secrets in it, if the value
    /// is secret.
    pub fn text(&self) -> String {
        if let [ValuePart::Source(source)] = &*self.0 {
            return source.to_string();
        }
        let is_alone = self.0.len() == 1;
        let pieces = self.0.iter().map(|piece| match piece {
            ValuePart::Text(text) => String::from_utf8_lossy(text).into_owned(),
            ValuePart::Source(source) => format!("$({source})"),
            ValuePart::Layers(layers) => {
                let values = layers.layers.iter().rev().map(|(_, value)| value);
                let texts: Vec<_> = values.chain(&layers.below).map(Self::text).collect();
                match texts.join(" or ") {
                    text if is_alone => text,
                    text => format!("$({text})"),
                }
            }
        });
        pieces.collect()
    }

    /// Whether it comes from a Secret.
    pub(crate) fn is_secret(&self) -> bool {
        self.sources()
            .any(|source| source.object == Some(Kind::Secret))
    }

    /// About what it takes in memory.
    pub(crate) fn len(&self) -> usize {
        let mut length = 0;
        self.walk(&mut |part| {
            length += match part {
                ValuePart::Text(text) => text.len(),
                ValuePart::Source(source) => source.len(),
                ValuePart::Layers(layers) => PART * layers.layers.len(),
            }
        });
        length
    }
}

/// Joins parts: texts beside each other become one.
#[derive(Default)]
struct Joiner<'p> {
    parts: Vec<ValuePart>,
    /// Collected before they are copied: a growing buffer leaves pieces of a secret behind.
    text: Vec<&'p [u8]>,
}

impl<'p> Joiner<'p> {
    fn push(&mut self, part: &'p ValuePart) {
        match part {
            ValuePart::Text(text) => self.text.push(text),
            part => {
                self.flush();
                self.parts.push(part.clone());
            }
        }
    }

    fn flush(&mut self) {
        let whole = self.text.concat();
        self.text.clear();
        if !whole.is_empty() {
            self.parts.push(ValuePart::Text(SecretBytes::new(whole)));
        }
    }

    fn finish(mut self) -> Unknown {
        self.flush();
        Unknown(self.parts)
    }
}

#[cfg(test)]
mod testing {
    use super::Unknown;

    /// A value of letters and gaps; a capital letter is a gap.
    pub(super) fn value(text: &str) -> Unknown {
        let gaps = text.chars().map(|letter| match letter {
            'A'..='Z' => Err(Unknown::of_fact(letter.to_string())),
            letter => Ok(letter.to_string()),
        });
        let gaps: Vec<Result<String, Unknown>> = gaps.collect();
        Unknown::joined(gaps.iter().map(|part| part.as_ref().map(String::as_bytes)))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn question(key: &str) -> Question {
        let object = ObjectId {
            kind: Kind::Secret,
            name: "x".into(),
            recipe: Recipe::default(),
        };
        Question::HasKey(object, key.into())
    }

    /// A value that the test fills in itself.
    #[derive(Clone, Debug)]
    enum Model {
        Text(&'static str),
        Joined(Box<Model>, Box<Model>),
        /// The value of the first if the answer is yes, else of the second; one that is absent counts as "-".
        Layered(&'static str, Box<Model>, Option<Box<Model>>),
    }

    impl Model {
        fn term(&self) -> Unknown {
            match self {
                Self::Text(text) => Unknown::of_text(text.as_bytes()),
                Self::Joined(one, other) => {
                    let present = |model: &Self| model.term().or(Unknown::of_text(b"-"));
                    let (one, other) = (present(one), present(other));
                    Unknown::joined([Err(&one), Err(&other)].into_iter())
                }
                Self::Layered(key, value, below) => {
                    let below = below.as_ref().map(|below| below.term());
                    let value = value.term().or(Unknown::of_text(b"-"));
                    Unknown::layered(below, question(key), value)
                }
            }
        }

        fn value(&self, yes: &BTreeSet<&str>) -> Option<String> {
            let present = |model: &Self| model.value(yes).unwrap_or_else(|| "-".to_owned());
            match self {
                Self::Text(text) => Some((*text).to_owned()),
                Self::Joined(one, other) => Some(present(one) + &present(other)),
                Self::Layered(key, value, _) if yes.contains(key) => Some(present(value)),
                Self::Layered(_, _, below) => below.as_ref()?.value(yes),
            }
        }
    }

    fn model() -> impl Strategy<Value = Model> {
        let text = prop::sample::select(vec!["", "a", "b"]).prop_map(Model::Text);
        text.prop_recursive(4, 16, 2, |inner| {
            let layered = (
                prop::sample::select(vec!["p", "q"]),
                inner.clone(),
                prop::option::of(inner.clone()),
            );
            prop_oneof![
                (inner.clone(), inner)
                    .prop_map(|(one, other)| Model::Joined(one.into(), other.into())),
                layered.prop_map(|(key, value, below)| Model::Layered(
                    key,
                    value.into(),
                    below.map(Box::new)
                )),
            ]
        })
    }

    proptest! {
        /// A term settles to what a walk over its making gives, whatever the answers; equal terms always agree.
        #[test]
        fn term_settles_as_it_was_made(one in model(), other in model()) {
            let (first, second) = (one.term(), other.term());
            for yes in [&[][..], &["p"], &["q"], &["p", "q"]] {
                let yes: BTreeSet<&str> = yes.iter().copied().collect();
                let answer = |asked: &Question| match asked {
                    Question::HasKey(_, key) => yes.contains(&**key),
                    Question::Exists(_) | Question::Fact(_) => false,
                };
                let value = one.value(&yes).map(|text| Unknown::of_text(text.as_bytes()));
                prop_assert_eq!(first.settled(&answer), value.clone());
                prop_assert!(value.is_some() || first.may_be_absent());
                if first == second {
                    prop_assert_eq!(first.settled(&answer), second.settled(&answer));
                }
            }
        }
    }
}
