#![doc = include_str!("../README.md")]

pub mod faults;
pub mod sys;

pub mod beneath;
pub mod lock;
pub mod new_file;
pub mod operation_error;
pub mod ownership;
pub mod pause;
pub mod regular_file;
pub mod replace;
pub mod stamp;
