//! [`RepeatedFailure`]: failures of work that is tried again and again, for the log.

use std::fmt::Display;

/// The failure of the last attempt. The log gets a failure once, not at each attempt.
#[derive(Debug, Default)]
pub(crate) struct RepeatedFailure(Option<String>);

impl RepeatedFailure {
    /// Returns the error of an attempt, unless the attempt before failed with the same one.
    pub(crate) fn new_error<T, E: Display>(&mut self, attempt: &Result<T, E>) -> Option<String> {
        let error = attempt.as_ref().err().map(ToString::to_string);
        let is_new = self.0 != error;
        self.0 = error;
        self.0.clone().filter(|_| is_new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_new_until_it_is_repeated() {
        let mut failure = RepeatedFailure::default();
        let attempts = [
            Err("away"),
            Err("away"),
            Err("full"),
            Ok(()),
            Ok(()),
            Err("full"),
        ];
        let logged = attempts.map(|attempt| failure.new_error(&attempt));
        let expected = [Some("away"), None, Some("full"), None, None, Some("full")];
        assert_eq!(logged, expected.map(|error| error.map(str::to_owned)));
    }
}
