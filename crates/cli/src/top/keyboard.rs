//! The keyboard of the live view: each key is read at once, without return.

use std::io::{self, Read};
use std::thread;

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use tokio::sync::mpsc::{Receiver, channel};

/// The keyboard of a terminal until this is dropped.
pub(super) struct Keyboard {
    before: Termios,
    keys: Receiver<u8>,
}

impl Keyboard {
    /// Takes over the keyboard; `None` if standard input is no terminal.
    pub(super) fn take_over() -> Option<Self> {
        let before = tcgetattr(io::stdin()).ok()?;
        let mut direct = before.clone();
        direct.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
        tcsetattr(io::stdin(), OptionalActions::Now, &direct).ok()?;
        let (send, keys) = channel(16);
        // It ends with the process: nothing else ends a read.
        thread::spawn(move || {
            let keys = io::stdin().lock().bytes().map_while(Result::ok);
            keys.map_while(|key| send.blocking_send(key).ok()).for_each(drop);
        });
        Some(Self { before, keys })
    }

    /// Waits for the next key; for ever if the terminal is gone.
    pub(super) async fn next(&mut self) -> u8 {
        match self.keys.recv().await {
            Some(key) => key,
            None => std::future::pending().await,
        }
    }
}

impl Drop for Keyboard {
    fn drop(&mut self) {
        let _gone = tcsetattr(io::stdin(), OptionalActions::Now, &self.before);
    }
}
