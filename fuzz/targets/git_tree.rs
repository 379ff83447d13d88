//! Runs the target of the same name.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    larder_fuzz::git_tree::run(input);
});
