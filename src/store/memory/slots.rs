//! A list that grows by pieces: nothing is copied when it grows, and little lies idle.
//!
//! One vector would double: for a while with both copies, and then up to half empty.

use std::ops::{Index, IndexMut};

/// Items in one piece.
const PIECE: usize = 64;

#[derive(Debug)]
pub(super) struct Slots<T>(Vec<Vec<T>>);

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Slots<T> {
    pub(super) fn len(&self) -> usize {
        // All pieces but the last are full, and none is empty.
        self.0.last().map_or(0, |last| (self.0.len() - 1) * PIECE + last.len())
    }

    pub(super) fn push(&mut self, item: T) {
        if self.0.last().is_none_or(|last| last.len() == PIECE) {
            self.0.push(Vec::with_capacity(PIECE));
        }
        self.0.last_mut().expect("a piece with room").push(item);
    }

    /// Drops an item; the last one takes its place.
    ///
    /// # Panics
    ///
    /// If there is no such item.
    pub(super) fn swap_remove(&mut self, position: usize) {
        let piece = self.0.last_mut().expect("an item to remove");
        let last = piece.pop().expect("no piece is empty");
        if piece.is_empty() {
            self.0.pop();
        }
        if position != self.len() {
            self[position] = last;
        }
    }
}

impl<T> Index<usize> for Slots<T> {
    type Output = T;

    fn index(&self, position: usize) -> &T {
        &self.0[position / PIECE][position % PIECE]
    }
}

impl<T> IndexMut<usize> for Slots<T> {
    fn index_mut(&mut self, position: usize) -> &mut T {
        &mut self.0[position / PIECE][position % PIECE]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_holds_what_one_vector_would() {
        let (mut slots, mut vector) = (Slots::default(), Vec::new());
        for step in 0..10_000_usize {
            // Up to about 200 items, and now and then none at all.
            if step % 1_000 < 200 || vector.is_empty() {
                slots.push(step);
                vector.push(step);
            } else {
                let position = step * 7_919 % vector.len();
                slots.swap_remove(position);
                vector.swap_remove(position);
            }
            assert_eq!(slots.len(), vector.len());
            assert!((0..vector.len()).all(|position| slots[position] == vector[position]));
        }
    }
}
