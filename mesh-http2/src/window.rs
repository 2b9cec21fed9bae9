//! Flow-control windows (RFC 9113, section 5.2).

use crate::frame::MIN_MAX_FRAME_SIZE;

/// Initial window of streams and connections, in bytes (RFC 9113, section 6.9.2).
pub const DEFAULT_WINDOW: u32 = 65_535;

/// The largest flow-control window, in bytes (RFC 9113, section 6.9.1).
pub const MAX_WINDOW: u32 = (1 << 31) - 1;

/// The window of sent data, in bytes. Negative after the peer has reduced its
/// SETTINGS_INITIAL_WINDOW_SIZE.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendWindow(i64);

/// The window of received data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceiveWindow {
    /// Bytes that the peer may still send, as far as it was notified.
    credit: i64,
    /// Released bytes that the peer was not notified of yet.
    released: u32,
    /// The size of the whole window.
    size: u32,
    /// The part of `size` that was added to this window alone.
    widened: u32,
}

/// More data than the window allows, or a window beyond [`MAX_WINDOW`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlowControlError;

impl SendWindow {
    pub(crate) fn new(size: u32) -> Self {
        Self(size.into())
    }

    pub(crate) fn capacity(self) -> usize {
        self.0.max(0) as usize
    }

    pub(crate) fn consume(&mut self, bytes: usize) {
        self.0 -= bytes as i64;
    }

    /// Adds the increment of a WINDOW_UPDATE, or the difference that new SETTINGS make.
    pub(crate) fn increase(&mut self, by: i64) -> Result<(), FlowControlError> {
        let grown = self.0 + by;
        if grown > MAX_WINDOW.into() {
            return Err(FlowControlError);
        }
        self.0 = grown;
        Ok(())
    }
}

impl ReceiveWindow {
    pub(crate) fn new(size: u32) -> Self {
        Self {
            credit: size.into(),
            released: 0,
            size,
            widened: 0,
        }
    }

    /// Takes received bytes from the window.
    pub(crate) fn consume(&mut self, bytes: u32) -> Result<(), FlowControlError> {
        if i64::from(bytes) > self.credit {
            return Err(FlowControlError);
        }
        self.credit -= i64::from(bytes);
        Ok(())
    }

    /// Releases received bytes that are not needed any more.
    pub(crate) fn release(&mut self, bytes: u32) {
        self.released += bytes;
    }

    /// Returns the increment of a WINDOW_UPDATE when it is worth a frame: half of the window, or
    /// what keeps a sender from a whole frame although everything was released. Some senders wait
    /// until their next frame fits, and would wait indefinitely. To be called after bytes were
    /// released.
    pub(crate) fn window_update(&mut self) -> Option<u32> {
        let frame = i64::from(MIN_MAX_FRAME_SIZE);
        let size = i64::from(self.size);
        let is_all_released = self.credit + i64::from(self.released) == size;
        if is_all_released && size >= frame && self.credit < frame {
            return self.take_update(1);
        }
        self.take_update(size / 2)
    }

    /// As [`ReceiveWindow::window_update`], for a window that streams share. While slow readers
    /// hold most of it, half of it is never released; then half of the rest is worth a frame. To be
    /// called also after bytes were received.
    pub(crate) fn shared_window_update(&mut self) -> Option<u32> {
        self.take_update(self.credit.min((self.size / 2).into()))
    }

    fn take_update(&mut self, threshold: i64) -> Option<u32> {
        if self.released == 0 || i64::from(self.released) < threshold {
            return None;
        }
        let increment = std::mem::take(&mut self.released);
        self.credit += i64::from(increment);
        Some(increment)
    }

    /// Enlarges the window of a connection, which cannot shrink.
    pub(crate) fn enlarge(&mut self, size: u32) {
        self.released += size.saturating_sub(self.size);
        self.size = self.size.max(size);
    }

    /// Sets the size of a stream's window after the peer has acknowledged it. A widened window
    /// stays wider by the same number of bytes.
    pub(crate) fn resize(&mut self, size: u32) {
        let size = size.saturating_add(self.widened);
        self.credit += i64::from(size) - i64::from(self.size);
        self.size = size;
    }

    /// Widens the window of one stream, and returns the increment of its WINDOW_UPDATE.
    pub(crate) fn widen(&mut self, by: u32) -> Option<u32> {
        self.widened += by;
        self.size += by;
        self.released += by;
        self.take_update(0)
    }

    /// Whether [`ReceiveWindow::widen`] was called.
    pub(crate) fn is_widened(&self) -> bool {
        self.widened > 0
    }

    /// Bytes that the peer may still send, as far as it was notified.
    pub(crate) fn credit(&self) -> u64 {
        self.credit.max(0).unsigned_abs()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn send_window_may_become_negative() {
        let mut window = SendWindow::new(100);
        window.consume(80);
        window.increase(-50).unwrap();
        assert_eq!(window.capacity(), 0);
        window.increase(40).unwrap();
        assert_eq!(window.capacity(), 10);
        assert_eq!(window.increase(MAX_WINDOW.into()), Err(FlowControlError));
        assert_eq!(window.capacity(), 10);
        window.increase(i64::from(MAX_WINDOW) - 10).unwrap();
        assert_eq!(window.capacity(), MAX_WINDOW as usize);
        assert_eq!(window.increase(1), Err(FlowControlError));
    }

    #[test]
    fn window_update_is_due_when_half_is_released() {
        let mut window = ReceiveWindow::new(100);
        window.consume(100).unwrap();
        assert_eq!(window.consume(1), Err(FlowControlError));
        window.release(49);
        assert_eq!(window.window_update(), None);
        assert_eq!(
            window.consume(1),
            Err(FlowControlError),
            "no WINDOW_UPDATE yet"
        );
        window.release(1);
        assert_eq!(window.window_update(), Some(50));
        window.consume(50).unwrap();
        assert_eq!(window.consume(1), Err(FlowControlError));
    }

    #[test]
    fn sender_of_whole_frames_does_not_wait_indefinitely() {
        let mut window = ReceiveWindow::new(MIN_MAX_FRAME_SIZE);
        for message in 0..3 {
            // A gRPC message of 16 KiB with its prefix, in two frames.
            for frame in [MIN_MAX_FRAME_SIZE, 5] {
                assert!(window.consume(frame).is_ok(), "{message}: {frame}");
                window.release(frame);
                assert_eq!(window.window_update(), Some(frame));
            }
        }
        window.consume(20).unwrap();
        window.release(10);
        assert_eq!(window.window_update(), None, "ten bytes are unread");
        let mut window = ReceiveWindow::new(2 * MIN_MAX_FRAME_SIZE);
        window.consume(MIN_MAX_FRAME_SIZE - 1).unwrap();
        window.release(MIN_MAX_FRAME_SIZE - 1);
        assert_eq!(window.window_update(), None, "a whole frame fits");
    }

    #[test]
    fn shared_window_updates_despite_slow_readers() {
        let mut window = ReceiveWindow::new(100);
        window.consume(90).unwrap();
        window.release(6);
        assert_eq!(
            window.shared_window_update(),
            None,
            "ten bytes of credit remain"
        );
        window.consume(4).unwrap();
        assert_eq!(
            window.shared_window_update(),
            Some(6),
            "six bytes of credit remain"
        );
        window.consume(12).unwrap();
        window.release(1);
        assert_eq!(window.shared_window_update(), Some(1), "no credit remains");
        let mut window = ReceiveWindow::new(100);
        window.consume(49).unwrap();
        window.release(49);
        assert_eq!(
            window.shared_window_update(),
            None,
            "half of the window is left"
        );
        window.consume(1).unwrap();
        window.release(1);
        assert_eq!(window.shared_window_update(), Some(50));
    }

    #[test]
    fn windows_are_enlarged_and_resized() {
        let mut window = ReceiveWindow::new(100);
        window.enlarge(300);
        assert_eq!(window.shared_window_update(), Some(200));
        window.consume(300).unwrap();
        window.enlarge(200);
        assert_eq!(window.shared_window_update(), None);
        let mut window = ReceiveWindow::new(100);
        window.consume(60).unwrap();
        window.resize(50);
        assert_eq!(window.consume(1), Err(FlowControlError));
        window.release(60);
        assert_eq!(window.window_update(), Some(60));
        window.consume(50).unwrap();
        assert_eq!(window.consume(1), Err(FlowControlError));
    }

    #[test]
    fn widened_window_keeps_its_increment_when_settings_are_acknowledged() {
        let mut window = ReceiveWindow::new(DEFAULT_WINDOW);
        window.consume(100).unwrap();
        window.release(100);
        assert_eq!(
            window.widen(900),
            Some(1000),
            "with what was released before"
        );
        assert!(window.is_widened());
        window.resize(100);
        assert_eq!(window.credit(), 1000);
        window.consume(1000).unwrap();
        assert_eq!(window.consume(1), Err(FlowControlError));
    }
}
