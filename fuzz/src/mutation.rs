//! Mutations of inputs: of their bytes, or of their structure.

use std::str;

use fastrand::Rng;

use crate::structure::Structure;

/// Words of all formats that are fuzzed.
const WORDS: [&str; 40] = [
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    "\"",
    "'",
    "\n",
    "\n  ",
    "- ",
    "---\n",
    "<<: *a",
    "&a ",
    "*a",
    "!!binary ",
    "|\n",
    "null",
    "true",
    "0644",
    "-1",
    "1e999",
    "9223372036854775808",
    "0.000000001",
    "\\u0000",
    "\u{feff}",
    "é",
    "\u{1f600}",
    "\r\n",
    "\0",
    "$(A)",
    "$$",
    "../",
    "/",
    "~1",
    "~0",
    "-009998-01-02T03:04:05Z",
    "\"metadata\":{",
    "\"name\":\"a\"",
    "=",
];

/// Mutates inputs of one target.
pub(crate) struct Mutator {
    words: Vec<Vec<u8>>,
    structure: Structure,
    max_length: usize,
}

impl Mutator {
    /// With the words of `dictionary` beside the common ones: a quoted word in each line, `#` begins a comment.
    pub(crate) fn new(dictionary: &str, structure: Structure, max_length: usize) -> Self {
        let own = dictionary.lines().filter_map(dictionary_word);
        let common = WORDS.iter().map(|word| word.as_bytes().to_vec());
        Self {
            words: common.chain(own).collect(),
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
                let word = &self.words[rng.usize(..self.words.len())];
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

/// The word of a line `"…"`, in which `\xNN` stands for a byte.
fn dictionary_word(line: &str) -> Option<Vec<u8>> {
    let mut rest = line.trim().strip_prefix('"')?.strip_suffix('"')?;
    let mut word = Vec::new();
    while let Some((before, after)) = rest.split_once('\\') {
        word.extend_from_slice(before.as_bytes());
        let hexadecimal = after.strip_prefix('x').and_then(|after| after.get(..2));
        if let Some(byte) = hexadecimal.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            word.push(byte);
            rest = &after[3..];
        } else {
            let end = after.chars().next().map_or(0, char::len_utf8);
            word.extend_from_slice(&after.as_bytes()[..end]);
            rest = &after[end..];
        }
    }
    word.extend_from_slice(rest.as_bytes());
    Some(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_dictionary_have_escapes() {
        assert_eq!(dictionary_word(r#""a: v1\x0a""#), Some(b"a: v1\n".to_vec()));
        assert_eq!(dictionary_word(r#""\"\\""#), Some(b"\"\\".to_vec()));
        assert_eq!(dictionary_word("# comment"), None);
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
