//! What the reference model grants to an id at a time: a ban comes before an override of the key,
//! this before an override of the rule, and last comes the rule.

use std::collections::HashMap;

use rlaas::algorithm::{Algorithm, Limit};
use rlaas::clock::Timestamp;
use rlaas::control::{KeyGrant, OverrideChange, OverrideKind};
use rlaas::rules::Grant;

/// The numbers of a limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct LimitNumbers {
    pub(super) units: i128,
    pub(super) burst: i128,
    pub(super) max_debt: Option<i128>,
}

impl LimitNumbers {
    pub(super) fn new(limit: &Limit) -> Self {
        let (units, burst) = (limit.units().into(), limit.burst().into());
        Self { units, burst, max_debt: limit.max_debt().map(i128::from) }
    }
}

/// What decides an id.
#[derive(Clone, Copy, Debug)]
pub(super) enum Granted {
    Limited(LimitNumbers),
    Unlimited,
    /// The end of the ban, if it has one.
    Banned {
        until: Option<Timestamp>,
    },
}

/// The rule, its overrides by id, and those of keys.
#[derive(Debug)]
pub(super) struct Grants {
    algorithm: Algorithm,
    window_us: i128,
    rule: LimitNumbers,
    by_file: HashMap<u8, Grant>,
    bans: HashMap<u8, Timestamp>,
    of_keys: HashMap<u8, (KeyGrant, Timestamp)>,
}

impl Grants {
    pub(super) fn new(algorithm: Algorithm, limit: &Limit) -> Self {
        let (rule, window_us) = (LimitNumbers::new(limit), limit.window().as_micros().into());
        let (by_file, bans, of_keys) = (HashMap::new(), HashMap::new(), HashMap::new());
        Self { algorithm, window_us, rule, by_file, bans, of_keys }
    }

    /// Replaces the limit of the rule.
    pub(super) fn set_rule(&mut self, limit: &Limit) {
        (self.rule, self.window_us) = (LimitNumbers::new(limit), limit.window().as_micros().into());
    }

    /// Returns the limit of the rule.
    pub(super) fn rule(&self) -> LimitNumbers {
        self.rule
    }

    /// Returns the most units of debt beside a limit.
    fn most_debt(&self, units: i128, burst: i128) -> i128 {
        match self.algorithm {
            Algorithm::FixedWindow => 9_007_199_254_740_000 - units,
            Algorithm::SlidingWindowLog => 0,
            _ => ((1 << 36) - 1 - burst).min(units * 366 * 86_400_000_000 / self.window_us),
        }
    }

    pub(super) fn override_by_file(&mut self, id: u8, grant: Grant) {
        self.by_file.insert(id, grant);
    }

    pub(super) fn forget_by_file(&mut self, id: u8) {
        self.by_file.remove(&id);
    }

    pub(super) fn set(&mut self, id: u8, time: Timestamp, change: &OverrideChange) {
        let ends_at = time + change.ttl();
        match change.grant() {
            KeyGrant::Banned => _ = self.bans.insert(id, ends_at),
            grant => _ = self.of_keys.insert(id, (grant, ends_at)),
        }
    }

    pub(super) fn clear(&mut self, id: u8, kind: OverrideKind) {
        if kind != OverrideKind::Grant {
            self.bans.remove(&id);
        }
        if kind != OverrideKind::Ban {
            self.of_keys.remove(&id);
        }
    }

    /// Returns the overrides of the key that have not ended: the ban first.
    pub(super) fn in_force(&self, id: u8, time: Timestamp) -> Vec<(KeyGrant, Timestamp)> {
        let ban = self.bans.get(&id).map(|ends_at| (KeyGrant::Banned, *ends_at));
        let all = ban.into_iter().chain(self.of_keys.get(&id).copied());
        all.filter(|(_, ends_at)| *ends_at > time).collect()
    }

    /// Returns what decides.
    pub(super) fn by(&self, id: u8, time: Timestamp) -> Granted {
        match self.bans.get(&id) {
            Some(ends_at) if *ends_at > time => Granted::Banned { until: Some(*ends_at) },
            _ => self.below_ban(id, time),
        }
    }

    /// Returns what decides without overrides of the key.
    fn own(&self, id: u8) -> Granted {
        match self.by_file.get(&id) {
            None => Granted::Limited(self.rule),
            Some(Grant::Limited(limit)) => Granted::Limited(LimitNumbers::new(limit)),
            Some(Grant::Unlimited) => Granted::Unlimited,
            Some(Grant::Banned) => Granted::Banned { until: None },
        }
    }

    /// Returns the limit by which a report is counted, whatever decides.
    pub(super) fn charging(&self, id: u8, time: Timestamp) -> Option<LimitNumbers> {
        let all = [self.below_ban(id, time), self.own(id)];
        all.into_iter().find_map(|granted| match granted {
            Granted::Limited(limit) => Some(limit),
            Granted::Unlimited | Granted::Banned { .. } => None,
        })
    }

    /// Returns what decides without a ban of the key.
    pub(super) fn below_ban(&self, id: u8, time: Timestamp) -> Granted {
        let own = self.own(id);
        match self.of_keys.get(&id) {
            Some((KeyGrant::Unlimited, ends_at)) if *ends_at > time => Granted::Unlimited,
            Some((KeyGrant::Limited { units, burst }, ends_at)) if *ends_at > time => {
                let units = i128::from(*units);
                let burst = if self.algorithm.has_burst() { (*burst).into() } else { units };
                // The debt stays, up to the most of the algorithm. A grant that is no limit keeps none.
                let Granted::Limited(LimitNumbers { max_debt, .. }) = own else {
                    return Granted::Limited(LimitNumbers { units, burst, max_debt: None });
                };
                let most = self.most_debt(units, burst);
                let max_debt = max_debt.map(|debt| debt.min(most));
                Granted::Limited(LimitNumbers { units, burst, max_debt })
            }
            _ => own,
        }
    }
}
