//! Mutations of inputs: of their bytes, or of their structure.

use fastrand::Rng;

use crate::structure::Structure;

/// Mutates inputs of one target.
pub(crate) struct Mutator {
    words: Vec<String>,
    structure: Structure,
    max_length: usize,
}

impl Mutator {
    /// With the words of `dictionary`: a string of JSON in each line, `#` begins a comment.
    pub(crate) fn new(dictionary: &str, structure: Structure, max_length: usize) -> Self {
        let words = dictionary.lines().filter(|line| !line.starts_with('#'));
        let word =
            |line| serde_json::from_str(line).expect("each line of a dictionary is a string");
        Self {
            words: words.map(word).collect(),
            structure,
            max_length,
        }
    }

    /// Changes of the structure of `input`, most often where it has one, or else one to eight changes of its bytes;
    /// some of them with parts of `other`.
    pub(crate) fn mutate(&self, input: &mut Vec<u8>, other: &[u8], rng: &mut Rng) {
        if rng.u8(..4) > 0
            && let Some(changed) = self.structure.mutate(input, other, &self.words, rng)
            && changed.len() <= self.max_length
        {
            *input = changed;
            return;
        }
        for _ in 0..1 << rng.u32(..4) {
            self.change(input, other, rng);
        }
        input.truncate(self.max_length);
    }

    fn change(&self, input: &mut Vec<u8>, other: &[u8], rng: &mut Rng) {
        let at = rng.usize(..=input.len());
        let range = at..(at + length(rng)).min(input.len());
        match rng.u8(..9) {
            0 if at < input.len() => input[at] ^= 1 << rng.u8(..8),
            1 if at < input.len() => input[at] = rng.u8(..),
            2 => drop(input.drain(range)),
            3 => {
                let copy = input[range].to_vec();
                insert(input, at, &copy);
            }
            4 => {
                let copy = input[range].to_vec();
                let to = rng.usize(..=input.len());
                insert(input, to, &copy);
            }
            5 => {
                let from = rng.usize(..=other.len());
                let part = &other[from..(from + length(rng)).min(other.len())];
                insert(input, at, part);
            }
            6 => {
                let from = rng.usize(..=other.len());
                let part = &other[from..(from + length(rng)).min(other.len())];
                input.splice(range, part.iter().copied());
            }
            7 => input.truncate(at),
            _ => {
                let Some(word) = rng.choice(&self.words).map(String::as_bytes) else {
                    return;
                };
                if rng.bool() {
                    insert(input, at, word);
                } else {
                    input.splice(range, word.iter().copied());
                }
            }
        }
    }
}

/// Mostly short, now and then long.
fn length(rng: &mut Rng) -> usize {
    let magnitude = rng.u32(..10);
    1 + rng.usize(..1 << magnitude)
}

fn insert(input: &mut Vec<u8>, at: usize, part: &[u8]) {
    input.splice(at..at, part.iter().copied());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_dictionary_have_escapes() {
        let mutator = Mutator::new("# a comment\n\"a: v1\\n\"", Structure::Bytes, 100);
        assert_eq!(mutator.words, ["a: v1\n"]);
    }

    #[test]
    fn a_seed_repeats_its_mutations() {
        let mutated = |seed| {
            let mutator = Mutator::new("", Structure::Bytes, 100);
            let mut rng = Rng::with_seed(seed);
            let mut input = b"apiVersion: v1\nkind: Pod\n".to_vec();
            for _ in 0..50 {
                mutator.mutate(&mut input, b"other", &mut rng);
                assert!(input.len() <= 100);
            }
            input
        };
        assert_eq!(mutated(1), mutated(1));
        assert_ne!(mutated(1), mutated(2));
    }
}
