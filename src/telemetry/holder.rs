//! Bounded places that callers of different projects share.

/// On whose account a place is held.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Holder {
    /// That of callers of all projects, for whom an eighth of the places is kept.
    #[default]
    AllProjects,
    /// That of one project, which has at most half of the places.
    Project(String),
}

impl Holder {
    /// Returns `true` if there is a place among `most` beside those that are held.
    pub fn finds_place<'a>(&self, most: usize, held: impl Iterator<Item = &'a Self>) -> bool {
        let held: Vec<&Self> = held.collect();
        let own = held.iter().filter(|other| **other == self).count();
        match self {
            Self::AllProjects => held.len() < most,
            Self::Project(_) => held.len() < most - most / 8 && own < most / 2,
        }
    }

    /// Returns the name of a map that is the holder's own.
    pub fn own_map(&self, map: &str) -> String {
        match self {
            Self::AllProjects => map.to_owned(),
            Self::Project(id) => format!("{map}:{id}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_project_has_more_than_half_and_an_eighth_is_for_callers_of_all() {
        let [shop, blog] = ["shop", "blog"].map(|id| Holder::Project(id.to_owned()));
        let mut held = Vec::new();
        let fill = |held: &mut Vec<Holder>, of: &Holder| {
            while of.finds_place(16, held.iter()) {
                held.push(of.clone());
            }
            held.len()
        };
        assert_eq!(fill(&mut held, &shop), 8);
        assert_eq!(fill(&mut held, &blog), 14);
        assert_eq!(fill(&mut held, &Holder::AllProjects), 16);
    }
}
