//! The order against a model: a stable sort.

use std::collections::BTreeSet;

use proptest::prelude::*;
use rlaas_core::clock::{Micros, Timestamp};

use super::{LineSink, Merge, OrderSettings, ShownLine, Source, SourceLine};
use crate::request::{Dictionary, RecordedFields, RecordedRequest, TimedRequest};
use crate::traffic::{TrafficCounts, TrafficError};

/// An input of lines at these seconds. The user of each line is its input and position.
#[derive(Debug)]
struct FakeSource {
    input: usize,
    seconds: Vec<u64>,
    position: usize,
}

impl Source for FakeSource {
    fn next(&mut self, sink: &mut LineSink<'_>) -> Result<Option<SourceLine>, TrafficError> {
        let Some(seconds) = self.seconds.get(self.position) else { return Ok(None) };
        let request = RecordedRequest::Fields(RecordedFields {
            user_id: format!("{} {}", self.input, self.position).into(),
            ..RecordedFields::default()
        });
        self.position += 1;
        sink.counts.lines += 1;
        let bytes = u32::try_from(request.bytes()).expect("a small request");
        let request = sink.dictionary.number(request);
        let request = TimedRequest { at: at(*seconds), request, was_refused: false };
        Ok(Some(SourceLine { request, bytes }))
    }

    fn shown_line(&self) -> ShownLine {
        ShownLine { number: self.position as u64, excerpt: String::new() }
    }

    fn refuse(&self, line: &ShownLine, counts: &mut TrafficCounts) {
        assert!(line.number > 0, "lines that wait are shown");
        counts.unread += 1;
    }

    fn position(&self) -> u64 {
        self.position as u64
    }

    fn finish(&mut self, _: &mut TrafficCounts) {}
}

fn at(seconds: u64) -> Timestamp {
    Timestamp::EPOCH + Micros::from_secs(seconds)
}

fn settings(span: u64, max_gap: u64) -> OrderSettings {
    OrderSettings {
        span: Micros::from_secs(span),
        max_gap: Micros::from_secs(max_gap),
        max_lines: 1_000_000,
        max_bytes: usize::MAX,
        dictionary_bytes: usize::MAX,
    }
}

/// A request as it left: its second, input and position.
type Left = (u64, usize, usize);

/// Reads all inputs. Each is known not to begin before `earliest`, where that is given.
fn ordered(
    settings: OrderSettings,
    inputs: &[Vec<u64>],
    earliest: Option<&[u64]>,
) -> (Vec<Left>, TrafficCounts) {
    let earliest: Vec<Timestamp> = match earliest {
        Some(earliest) => earliest.iter().map(|seconds| at(*seconds)).collect(),
        None => vec![Timestamp::EPOCH; inputs.len()],
    };
    let mut merge = Merge::new(settings, &earliest);
    let mut open = |input: usize| -> Result<Box<dyn Source>, TrafficError> {
        Ok(Box::new(FakeSource { input, seconds: inputs[input].clone(), position: 0 }))
    };
    let (mut dictionary, mut counts) = (Dictionary::default(), TrafficCounts::default());
    let mut left = Vec::new();
    loop {
        let mut sink = LineSink { dictionary: &mut dictionary, counts: &mut counts };
        let next = merge.next(&mut open, &mut sink).expect("no errors");
        let Some(next) = next else { break };
        let RecordedRequest::Fields(fields) = dictionary.request(next.request) else {
            panic!("fields")
        };
        let (input, position) = fields.user_id.split_once(' ').expect("two numbers");
        let number = |text: &str| text.parse().expect("a number");
        left.push((next.at.as_millis() / 1_000, number(input), number(position)));
    }
    assert_eq!(merge.position(), counts.lines);
    assert_eq!(merge.held_lines(), 0);
    (left, counts)
}

/// What must leave, without jumps and bounds: each line at its time, or at the oldest time that was
/// open, in a stable order. And how many are late.
fn model(span: u64, inputs: &[Vec<u64>]) -> (Vec<Left>, u64) {
    let (mut left, mut late) = (Vec::new(), 0);
    for (input, seconds) in inputs.iter().enumerate() {
        let mut newest = 0;
        for (position, second) in seconds.iter().enumerate() {
            newest = newest.max(*second);
            let open = newest.saturating_sub(span);
            late += u64::from(*second < open);
            left.push(((*second).max(open), input, position));
        }
    }
    left.sort_unstable();
    (left, late)
}

fn seconds() -> impl Strategy<Value = Vec<u64>> {
    // Mostly forward, with steps back of all sizes.
    let step = prop_oneof![4 => 0..30_i64, 2 => -80..30_i64, 1 => -400..400_i64];
    (0..1_000_i64, proptest::collection::vec(step, 0..200)).prop_map(|(start, steps)| {
        let add = |at: &mut i64, step: i64| {
            *at = (*at + step).max(0);
            Some(at.unsigned_abs())
        };
        steps.into_iter().scan(start, add).collect()
    })
}

fn cases() -> ProptestConfig {
    let cases = std::env::var("SOAK").ok().and_then(|cases| cases.parse().ok());
    ProptestConfig::with_cases(cases.unwrap_or(100))
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn order_is_a_stable_sort(
        inputs in proptest::collection::vec(seconds(), 1..5),
        span in 0..100_u64,
    ) {
        let (left, counts) = ordered(settings(span, 1_000_000), &inputs, None);
        let (expected, late) = model(span, &inputs);
        prop_assert_eq!(&left, &expected);
        prop_assert_eq!((counts.late, counts.unread, counts.left_early), (late, 0, 0));
        // It does not matter when inputs are opened, nor how large the dictionary may be.
        let earliest: Vec<u64> = inputs
            .iter()
            .map(|seconds| seconds.first().unwrap_or(&0).saturating_sub(span))
            .collect();
        let settings = OrderSettings { dictionary_bytes: 1_000, ..settings(span, 1_000_000) };
        let (again, same) = ordered(settings, &inputs, Some(&earliest));
        prop_assert_eq!(again, left);
        prop_assert_eq!(same.late, late);
    }

    #[test]
    fn no_line_is_lost_whatever_the_bounds_are(
        inputs in proptest::collection::vec(seconds(), 1..5),
        span in 0..100_u64,
        max_gap in 0..200_u64,
        max_lines in 0..30_usize,
    ) {
        let settings = OrderSettings { max_lines, ..settings(span, max_gap) };
        let (left, counts) = ordered(settings, &inputs, None);
        prop_assert!(left.is_sorted_by_key(|(at, ..)| *at));
        let lines: BTreeSet<_> = left.iter().map(|(_, input, position)| (*input, *position)).collect();
        prop_assert_eq!(lines.len(), left.len(), "each line once");
        prop_assert_eq!(counts.lines, left.len() as u64 + counts.unread);
        for (input, seconds) in inputs.iter().enumerate() {
            for (at, _, position) in left.iter().filter(|(_, of, _)| *of == input) {
                prop_assert!(*at >= seconds[*position], "lines move only forward");
            }
        }
        let moved = left.iter().filter(|(at, of, position)| *at != inputs[*of][*position]);
        prop_assert_eq!(moved.count() as u64, counts.late);
        prop_assert_eq!(ordered(settings, &inputs, None).0, left, "the same again");
    }
}

#[test]
fn a_full_buffer_lets_the_oldest_line_leave() {
    let settings = OrderSettings { max_lines: 2, ..settings(60, 1_000) };
    let (left, counts) = ordered(settings, &[vec![10, 20, 15, 5, 30]], None);
    let seconds: Vec<u64> = left.iter().map(|(at, ..)| *at).collect();
    assert_eq!(seconds, [10, 15, 15, 20, 30], "the line of second 5 came too late");
    assert_eq!((counts.left_early, counts.late), (2, 1));
}

#[test]
fn lines_far_ahead_that_nothing_follows_are_unread() {
    let mut seconds: Vec<u64> = (0..300).collect();
    seconds.insert(150, 1_000_000);
    let (left, counts) = ordered(settings(60, 1_000), &[seconds], None);
    assert_eq!((left.len(), counts.unread, counts.gaps, counts.late), (300, 1, 0, 0));
}

#[test]
fn few_of_many_inputs_are_open() {
    let inputs: Vec<Vec<u64>> = (0..1_000).map(|hour| vec![hour * 3_600 + 100; 3]).collect();
    let earliest: Vec<u64> = (0..1_000).map(|hour| hour * 3_600 + 40).collect();
    let starts: Vec<_> = earliest.iter().map(|seconds| at(*seconds)).collect();
    let mut merge = Merge::new(settings(60, 100_000), &starts);
    let mut open = |input: usize| -> Result<Box<dyn Source>, TrafficError> {
        Ok(Box::new(FakeSource { input, seconds: inputs[input].clone(), position: 0 }))
    };
    let (mut dictionary, mut counts) = (Dictionary::default(), TrafficCounts::default());
    for expected in inputs.iter().flatten() {
        let mut sink = LineSink { dictionary: &mut dictionary, counts: &mut counts };
        let next = merge.next(&mut open, &mut sink).expect("no errors").expect("a line");
        assert_eq!(next.at, at(*expected));
        assert!(merge.open_inputs() <= 2);
    }
}
