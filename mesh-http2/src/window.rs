//! Flow control (RFC 9113, section 5.2): how much may be sent, and how much may come.

/// What streams and connections may send before anything was said about it (RFC 9113, section 6.9.2).
pub const DEFAULT_WINDOW: u32 = 65_535;

/// The largest window there is (RFC 9113, section 6.9.1).
pub const MAX_WINDOW: u32 = (1 << 31) - 1;

/// What we may send. Below nothing after the other side has made it smaller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sending(i64);

/// What the other side may send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Receiving {
    /// As far as it knows.
    allowed: i64,
    /// Was used and may be used again, which it has not been told yet.
    free: u32,
    /// How much it may be in all.
    size: u32,
}

/// More was sent, or allowed, than there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Overflow;

impl Sending {
    pub(crate) fn new(size: u32) -> Self {
        Self(size.into())
    }

    pub(crate) fn room(self) -> usize {
        self.0.max(0) as usize
    }

    pub(crate) fn take(&mut self, bytes: usize) {
        self.0 -= bytes as i64;
    }

    /// By a WINDOW_UPDATE, or by the difference that new settings make.
    pub(crate) fn grow(&mut self, by: i64) -> Result<(), Overflow> {
        let grown = self.0 + by;
        if grown > MAX_WINDOW.into() {
            return Err(Overflow);
        }
        self.0 = grown;
        Ok(())
    }
}

impl Receiving {
    pub(crate) fn new(size: u32) -> Self {
        Self {
            allowed: size.into(),
            free: 0,
            size,
        }
    }

    /// Something has come.
    pub(crate) fn take(&mut self, bytes: u32) -> Result<(), Overflow> {
        if i64::from(bytes) > self.allowed {
            return Err(Overflow);
        }
        self.allowed -= i64::from(bytes);
        Ok(())
    }

    /// What had come is needed no more. Returns what the other side is to be told, when that is worth a frame: half of the window.
    pub(crate) fn free(&mut self, bytes: u32) -> Option<u32> {
        self.free += bytes;
        if self.free == 0 || self.free < self.size / 2 {
            return None;
        }
        let told = std::mem::take(&mut self.free);
        self.allowed += i64::from(told);
        Some(told)
    }

    /// Makes the window of a connection larger. Smaller it cannot become. Returns what the other side is to be told.
    pub(crate) fn enlarge(&mut self, size: u32) -> Option<u32> {
        let more = size.checked_sub(self.size)?;
        self.size = size;
        self.free(more)
    }

    /// The other side has taken settings that make the window of each stream so large.
    pub(crate) fn resize(&mut self, size: u32) {
        self.allowed += i64::from(size) - i64::from(self.size);
        self.size = size;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_sent_can_be_less_than_nothing() {
        let mut window = Sending::new(100);
        window.take(80);
        window.grow(-50).unwrap();
        assert_eq!(window.room(), 0);
        window.grow(40).unwrap();
        assert_eq!(window.room(), 10);
        assert_eq!(window.grow(MAX_WINDOW.into()), Err(Overflow));
        assert_eq!(window.room(), 10);
    }

    #[test]
    fn the_other_side_is_told_when_half_is_free() {
        let mut window = Receiving::new(100);
        window.take(100).unwrap();
        assert_eq!(window.take(1), Err(Overflow));
        assert_eq!(window.free(49), None);
        assert_eq!(window.take(1), Err(Overflow), "not told yet");
        assert_eq!(window.free(1), Some(50));
        window.take(50).unwrap();
        assert_eq!(window.take(1), Err(Overflow));
    }

    #[test]
    fn windows_become_larger() {
        let mut window = Receiving::new(100);
        assert_eq!(window.enlarge(300), Some(200));
        window.take(300).unwrap();
        assert_eq!(window.enlarge(200), None);
        let mut window = Receiving::new(100);
        window.take(60).unwrap();
        window.resize(50);
        assert_eq!(window.take(1), Err(Overflow));
        assert_eq!(window.free(60), Some(60));
        window.take(50).unwrap();
        assert_eq!(window.take(1), Err(Overflow));
    }
}
