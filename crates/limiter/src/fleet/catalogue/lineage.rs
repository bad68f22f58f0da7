//! The epochs that a catalogue has replaced.

use std::fmt;
use std::str::FromStr;

use super::{CatalogueHead, CatalogueId, InvalidCatalogueId};

/// The last [`Lineage::MAX_LEN`] epochs that a catalogue has replaced, newest first, each with the
/// revision at which it was.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lineage(Vec<(CatalogueId, u64)>);

impl Lineage {
    /// Most epochs.
    pub const MAX_LEN: usize = 16;

    /// Returns the lineage of a catalogue that keeps what `kept` was, and replaces other epochs too. Of
    /// an epoch with several revisions the last one counts, but for that of `kept`.
    pub fn replacing(
        kept: CatalogueHead,
        others: impl IntoIterator<Item = (CatalogueId, u64)>,
    ) -> Self {
        let mut epochs = vec![(kept.epoch, kept.revision)];
        for (epoch, revision) in others {
            match epochs.iter_mut().find(|(known, _)| *known == epoch) {
                Some((known, _)) if *known == kept.epoch => {}
                Some((_, known)) => *known = revision.max(*known),
                None => epochs.push((epoch, revision)),
            }
        }
        epochs.truncate(Self::MAX_LEN);
        Self(epochs)
    }

    /// Returns the epochs with their revisions, newest first.
    pub fn iter(&self) -> impl Iterator<Item = (CatalogueId, u64)> {
        self.0.iter().copied()
    }

    /// Returns the revision at which an epoch was replaced; `None` if it is not among the last ones.
    pub fn revision_of(&self, epoch: CatalogueId) -> Option<u64> {
        self.iter().find(|(known, _)| *known == epoch).map(|(_, revision)| revision)
    }
}

/// Writes each epoch with `:` and its revision, and spaces between them.
impl fmt::Display for Lineage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, (epoch, revision)) in self.iter().enumerate() {
            let space = if position == 0 { "" } else { " " };
            write!(f, "{space}{epoch}:{revision}")?;
        }
        Ok(())
    }
}

impl FromStr for Lineage {
    type Err = InvalidCatalogueId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parse = |word: &str| {
            let (epoch, revision) = word.split_once(':').ok_or(InvalidCatalogueId)?;
            Ok((epoch.parse()?, revision.parse().map_err(|_| InvalidCatalogueId)?))
        };
        text.split_ascii_whitespace().map(parse).collect::<Result<_, _>>().map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(revision: u64) -> CatalogueHead {
        CatalogueHead { epoch: CatalogueId(0), revision, id: CatalogueId(9) }
    }

    #[test]
    fn lineage_is_read_as_it_is_written() {
        let lineage = Lineage::replacing(head(7), [(CatalogueId(u128::MAX), 1 << 60)]);
        assert_eq!(lineage.to_string().parse(), Ok(lineage));
        assert_eq!("".parse(), Ok(Lineage::default()));
        assert_eq!("0:1".parse::<Lineage>(), Err(InvalidCatalogueId));
    }

    #[test]
    fn the_last_epochs_are_kept_with_the_revision_that_was_kept() {
        let others = (1..20).map(|of| (CatalogueId(of), u64::try_from(of).expect("a number")));
        let lineage = Lineage::replacing(head(7), others.chain([(CatalogueId(0), 9)]));
        assert_eq!(lineage.iter().count(), Lineage::MAX_LEN);
        assert_eq!(lineage.revision_of(CatalogueId(0)), Some(7));
        assert_eq!(lineage.revision_of(CatalogueId(15)), Some(15));
        assert_eq!(lineage.revision_of(CatalogueId(16)), None);
        let twice = Lineage::replacing(head(7), [(CatalogueId(1), 3), (CatalogueId(1), 2)]);
        assert_eq!(twice.revision_of(CatalogueId(1)), Some(3));
    }
}
