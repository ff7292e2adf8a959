//! Pure functions on text that several crates need: finding secrets. No I/O.

mod secrets;

pub use secrets::{Redactor, is_secret_variable};
