//! What must be so for a value to be there: what holds for all answers for which one of its layers counts.

use std::collections::BTreeSet;

use super::{Layers, Question, Unknown, ValuePart};

impl Question {
    /// All that is answered with yes if this is: an object that has a key is there.
    pub fn implied(&self) -> impl Iterator<Item = Self> {
        let existence = match self {
            Self::HasKey(object, _) => Some(Self::existence(object)),
            Self::Exists(_) | Self::Fact(_) => None,
        };
        [self.clone()].into_iter().chain(existence)
    }
}

impl Unknown {
    /// The questions that are answered with yes wherever it is there.
    pub fn conditions(&self) -> BTreeSet<Question> {
        let parts = self.0.iter();
        let conditions = parts.flat_map(|part| match part {
            ValuePart::Layers(layers) => layers.conditions(),
            ValuePart::Text(_) | ValuePart::Source(_) => BTreeSet::new(),
        });
        conditions.collect()
    }

    /// The value where these questions are answered with yes, as far as that decides it.
    #[must_use]
    pub fn given(&self, answers: &BTreeSet<Question>) -> Self {
        let parts = self.0.iter().map(|part| match part {
            ValuePart::Layers(layers) => layers.given(answers),
            part => Self(vec![part.clone()]),
        });
        let parts: Vec<_> = parts.collect();
        Self::joined(parts.iter().map(Err))
    }
}

impl Layers {
    fn conditions(&self) -> BTreeSet<Question> {
        let below = self.below.iter().map(Unknown::conditions);
        let layers = self.layers.iter().map(|(question, value)| {
            let mut all = value.conditions();
            all.extend(question.implied());
            all
        });
        let in_all = below.chain(layers).reduce(|mut all, one| {
            all.retain(|question| one.contains(question));
            all
        });
        in_all.unwrap_or_default()
    }

    /// A layer that counts hides all below it, and one that asks again those before it with its question.
    fn given(&self, answers: &BTreeSet<Question>) -> Unknown {
        let mut layers = self.layers.iter();
        let counting = layers.rposition(|(question, _)| answers.contains(question));
        let (below, above) = match counting {
            Some(place) => (Some(&self.layers[place].1), &self.layers[place + 1..]),
            None => (self.below.as_ref(), &self.layers[..]),
        };
        let below = below.map(|value| value.given(answers));
        let mut asked = BTreeSet::new();
        let mut seen: Vec<_> = above.iter().collect();
        seen.reverse();
        seen.retain(|(question, _)| asked.insert(question));
        let value = seen.into_iter().rfold(below, |below, (question, value)| {
            let value = value.given(answers);
            Some(Unknown::layered(below, question.clone(), value))
        });
        value.expect("it has a layer")
    }
}

#[cfg(test)]
mod tests {
    use larder_objects::{Kind, manifest::Recipe};

    use super::*;
    use crate::ObjectId;

    fn has_key(object: &str, key: &str) -> Question {
        let object = ObjectId {
            kind: Kind::Secret,
            name: object.into(),
            recipe: Recipe::default(),
        };
        Question::HasKey(object, key.into())
    }

    #[test]
    fn conditions_hold_for_each_layer_that_may_count() {
        let text = Unknown::of_text(b"1");
        let layered = |below: Option<Unknown>, (object, key): (&str, &str)| {
            Some(Unknown::layered(below, has_key(object, key), text.clone()))
        };
        let conditions = |layers: &[(&str, &str)], below| -> Vec<_> {
            let value = layers.iter().copied().fold(below, layered);
            let found = value.iter().flat_map(Unknown::conditions);
            found.map(|question| question.to_string()).collect()
        };
        assert_eq!(
            conditions(&[("x", "a")], None),
            ["secret x", "secret x key a"]
        );
        assert_eq!(conditions(&[("x", "a"), ("x", "b")], None), ["secret x"]);
        assert_eq!(conditions(&[("x", "a"), ("y", "a")], None), [""; 0]);
        assert_eq!(conditions(&[("x", "a")], Some(text.clone())), [""; 0]);
        // What a layer is made of may be absent, too.
        let inner = layered(None, ("y", "b")).unwrap();
        let outer = Unknown::layered(None, has_key("x", "a"), inner);
        assert_eq!(outer.conditions().len(), 4);
    }

    #[test]
    fn a_layer_that_counts_hides_all_below_it() {
        let [one, two, three] = ["1", "2", "3"].map(|text| Unknown::of_text(text.as_bytes()));
        let middle = Unknown::layered(Some(one), has_key("x", "a"), two);
        let all = Unknown::layered(Some(middle), has_key("x", "b"), three);
        let given = |keys: &[&str]| {
            let answers = keys.iter().map(|key| has_key("x", key)).collect();
            all.given(&answers).text()
        };
        assert_eq!(given(&[]), "3 or 2 or 1");
        assert_eq!(given(&["a"]), "3 or 2");
        assert_eq!(given(&["b"]), "3");
        assert_eq!(given(&["a", "b"]), "3");
    }

    #[test]
    fn a_layer_that_asks_again_hides_those_before_it() {
        let [one, two] = ["1", "2"].map(|text| Unknown::of_text(text.as_bytes()));
        let below = Unknown::layered(None, has_key("x", "b"), two.clone());
        let asked_once = Unknown::layered(Some(below), has_key("x", "a"), one.clone());
        let below = Unknown::layered(None, has_key("x", "a"), two.clone());
        let below = Unknown::layered(Some(below), has_key("x", "b"), two);
        let asked_again = Unknown::layered(Some(below), has_key("x", "a"), one);
        assert_ne!(asked_again, asked_once);
        assert_eq!(asked_again.given(&BTreeSet::new()), asked_once);
    }
}
