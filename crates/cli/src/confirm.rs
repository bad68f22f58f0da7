//! The question before changes that cannot be undone.

use std::io::{self, BufRead, IsTerminal, Write};

use crate::call::CommandError;

/// Returns `true` if nobody types the command, so that nobody could answer, or if `yes` was given.
pub fn is_given(yes: bool) -> bool {
    yes || !io::stdin().is_terminal()
}

/// Asks on standard error.
///
/// # Errors
///
/// [`CommandError::NotConfirmed`] if the answer is not yes.
pub fn confirm(question: &str) -> Result<(), CommandError> {
    if prompt(question).map_err(anyhow::Error::from)? {
        Ok(())
    } else {
        Err(CommandError::NotConfirmed)
    }
}

fn prompt(question: &str) -> io::Result<bool> {
    let mut terminal = io::stderr();
    write!(terminal, "{question} [y/N] ")?;
    terminal.flush()?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
