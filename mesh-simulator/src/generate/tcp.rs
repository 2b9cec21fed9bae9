//! Bytes without messages, with either peer as the first speaker.

use super::{Draft, Who};
use crate::script::{Bytes, Protocol, Reading, Step, Wait};

pub(super) fn write(draft: &mut Draft) {
    draft.protocol = Protocol::Tcp;
    let mut speaker = draft.who();
    let mut sent = [0_u64; 2];
    if draft.chance(8) {
        let who = draft.who();
        draft.pause(who);
    }
    let turns = draft.below(6);
    for turn in 0..turns {
        let bytes = payload(draft, speaker, turn);
        turn_of(draft, speaker, bytes, &mut sent);
        if draft.chance(2) {
            speaker = speaker.peer();
        }
    }
    if draft.chance(6) {
        half_closed(draft, &mut sent);
    } else {
        draft.end_connection();
    }
}

/// Content that no proxy may take for a protocol that it knows: no client of these protocols
/// begins like this. One in four begins in a way that it might.
fn payload(draft: &mut Draft, speaker: Who, turn: u32) -> Bytes {
    let size = draft.size();
    let mut bytes = draft.content(size);
    if turn == 0 && speaker == Who::Client && draft.chance(4) {
        let begins = [
            "\x16\x02\x01",
            "\x00",
            "SSH-2.0-x\r\n",
            "\u{1}\u{2}",
            "EHLO x\r\n",
        ];
        let begin = draft.pick(&begins);
        bytes.0.splice(0..0, Bytes::literal(begin).0);
    }
    bytes
}

/// One peer sends, and the other waits for all of it.
pub(super) fn turn_of(draft: &mut Draft, speaker: Who, bytes: Bytes, sent: &mut [u64; 2]) {
    let total = &mut sent[usize::from(speaker == Who::Server)];
    *total += bytes.len();
    let total = *total;
    let reader = speaker.peer();
    match draft.below(10) {
        0 => {
            let (bytes, every) = (draft.below(2000) + 100, u64::from(draft.below(20) + 1));
            let bytes = bytes as usize;
            draft.step(reader, Step::Read(Reading::Slow { bytes, every }));
        }
        1 => {
            draft.step(reader, Step::Read(Reading::Stop));
            draft.pause(reader);
            draft.step(reader, Step::Read(Reading::Go));
        }
        2 => draft.pause(speaker),
        _ => {}
    }
    draft.send(speaker, bytes);
    draft.step(reader, Step::Wait(Wait::Bytes(total)));
}

/// After the FIN of one peer the other still sends.
fn half_closed(draft: &mut Draft, sent: &mut [u64; 2]) {
    let first = draft.who();
    draft.step(first, Step::Finish);
    draft.step(first.peer(), Step::Wait(Wait::End));
    let size = draft.size();
    let bytes = draft.content(size);
    turn_of(draft, first.peer(), bytes, sent);
    match draft.below(3) {
        0 => draft.step(first.peer(), Step::Close),
        1 => {
            draft.step(first.peer(), Step::Finish);
            draft.step(first, Step::Wait(Wait::End));
        }
        _ => {
            draft.meet(first);
            draft.step(first.peer(), Step::Reset);
        }
    }
}
