//! Merges inputs by time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use rlaas_core::clock::Timestamp;

use super::stream::{HeldAmount, LineSink, OrderSettings, OrderedStream, Source};
use crate::request::{Dictionary, TimedRequest};
use crate::traffic::TrafficError;

/// Opens the input of this number.
type OpenSource<'a> = &'a mut dyn FnMut(usize) -> Result<Box<dyn Source>, TrafficError>;

/// Inputs, merged by time. Lines of equal times leave in the order of the inputs.
///
/// An input is opened when its first line may be next, so that of many small ones few are open.
#[derive(Debug)]
pub(crate) struct Merge {
    settings: OrderSettings,
    held: HeldAmount,
    inputs: Vec<MergedInput>,
    /// Time of the next line of each input, or a time before it, and the number of the input.
    next: BinaryHeap<Reverse<(Timestamp, usize)>>,
    /// Bytes of the inputs that are read to their ends.
    finished_bytes: u64,
    /// Bytes of the dictionary when its generation began.
    first_bytes: usize,
}

#[derive(Debug)]
enum MergedInput {
    Unopened,
    Open(Box<OrderedStream>),
    Finished,
}

impl Merge {
    /// Creates a merge of inputs, of each of which a time is known that none of its lines is before.
    pub(crate) fn new(settings: OrderSettings, earliest: &[Timestamp]) -> Self {
        let next = earliest.iter().enumerate().map(|(input, at)| Reverse((*at, input))).collect();
        let inputs = earliest.iter().map(|_| MergedInput::Unopened).collect();
        Self {
            settings,
            held: HeldAmount::default(),
            inputs,
            next,
            finished_bytes: 0,
            first_bytes: 0,
        }
    }

    /// Returns the next request of all inputs; `None` at the end. May begin a new generation of the
    /// dictionary, of which the request is.
    ///
    /// # Errors
    ///
    /// [`TrafficError`] if an input can't be opened or read.
    pub(crate) fn next(
        &mut self,
        open: OpenSource<'_>,
        sink: &mut LineSink<'_>,
    ) -> Result<Option<TimedRequest>, TrafficError> {
        if sink.dictionary.bytes() > self.first_bytes + self.settings.dictionary_bytes {
            self.renew(sink.dictionary);
        }
        while let Some(mut top) = self.next.peek_mut() {
            let Reverse((_, number)) = *top;
            let input = &mut self.inputs[number];
            let mut request = None;
            match input {
                MergedInput::Unopened => {
                    sink.counts.inputs += 1;
                    let stream = OrderedStream::new(open(number)?, &self.settings);
                    *input = MergedInput::Open(Box::new(stream));
                }
                MergedInput::Open(stream) => request = stream.pop(&mut self.held),
                MergedInput::Finished => {}
            }
            let filled = match input {
                MergedInput::Open(stream) => stream.fill(&self.settings, &mut self.held, sink)?,
                MergedInput::Unopened | MergedInput::Finished => None,
            };
            if let Some(at) = filled {
                // Moves only if another input is next.
                *top = Reverse((at, number));
            } else {
                PeekMut::pop(top);
                if let MergedInput::Open(stream) = std::mem::replace(input, MergedInput::Finished) {
                    self.finished_bytes += stream.position();
                    stream.finish(sink.counts);
                }
            }
            if request.is_some() {
                return Ok(request);
            }
        }
        Ok(None)
    }

    /// Begins a new generation of the dictionary, with the requests that are held.
    fn renew(&mut self, dictionary: &mut Dictionary) {
        let mut requests: Vec<_> = dictionary.take().into_iter().map(Ok).collect();
        let mut change = |number: &mut u32| {
            let request = &mut requests[*number as usize];
            *number = match std::mem::replace(request, Err(0)) {
                Ok(request) => dictionary.number(request),
                Err(number) => number,
            };
            *request = Err(*number);
        };
        for input in &mut self.inputs {
            if let MergedInput::Open(stream) = input {
                stream.change_numbers(&mut change);
            }
        }
        self.first_bytes = dictionary.bytes();
    }

    /// Returns how many bytes were read of the inputs as they are stored.
    pub(crate) fn position(&self) -> u64 {
        let open = self.inputs.iter().map(|input| match input {
            MergedInput::Open(stream) => stream.position(),
            MergedInput::Unopened | MergedInput::Finished => 0,
        });
        self.finished_bytes + open.sum::<u64>()
    }

    /// Returns how many inputs are open.
    #[cfg(test)]
    pub(super) fn open_inputs(&self) -> usize {
        self.inputs.iter().filter(|input| matches!(input, MergedInput::Open(_))).count()
    }

    /// Returns how many lines are held.
    #[cfg(test)]
    pub(super) fn held_lines(&self) -> usize {
        self.held.lines
    }
}
