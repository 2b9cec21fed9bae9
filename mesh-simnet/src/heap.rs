//! [`Heap`]: the allocator of a program that limits what proxies hold.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr;

use crate::usage;

/// An allocator that counts the allocations of proxies. Tasks of their
/// [`Process::run`](crate::Process::run) make them. The buffers of the network belong to the kernel.
#[derive(Debug)]
pub struct Heap;

/// The bytes before a block. The last one says whether it is a proxy's.
fn header(layout: Layout) -> usize {
    layout.align().max(16)
}

/// The layout of a block with its header.
fn with_header(layout: Layout, size: usize) -> Option<Layout> {
    let size = size.checked_add(header(layout))?;
    Layout::from_size_align(size, layout.align()).ok()
}

/// Writes the header of a new block. Returns the block.
///
/// # Safety
///
/// `begin` is null or has `header(layout)` bytes before the block.
unsafe fn begin(begin: *mut u8, layout: Layout) -> *mut u8 {
    if begin.is_null() {
        return begin;
    }
    let is_proxy = usage::is_proxy();
    if is_proxy {
        usage::add(layout.size());
    }
    // SAFETY: the caller has allocated the header, which has at least one byte.
    unsafe {
        let block = begin.add(header(layout));
        block.sub(1).write(u8::from(is_proxy));
        block
    }
}

// SAFETY: blocks come from `System` with their alignment, behind a header of a multiple of it. The
// counters are `Cell`s without destructors, which do not allocate.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(whole) = with_header(layout, layout.size()) else {
            return ptr::null_mut();
        };
        // SAFETY: `whole` has at least one byte.
        unsafe { begin(System.alloc(whole), layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let Some(whole) = with_header(layout, layout.size()) else {
            return ptr::null_mut();
        };
        // SAFETY: `whole` has at least one byte.
        unsafe { begin(System.alloc_zeroed(whole), layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let Some(whole) = with_header(layout, layout.size()) else {
            return;
        };
        // SAFETY: the block has a header, and was allocated with this layout.
        unsafe {
            if block.sub(1).read() != 0 {
                usage::subtract(layout.size());
            }
            System.dealloc(block.sub(header(layout)), whole);
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let (Some(whole), Some(new)) = (
            with_header(layout, layout.size()),
            with_header(layout, size),
        ) else {
            return ptr::null_mut();
        };
        // SAFETY: the block has a header, and was allocated with this layout.
        unsafe {
            let begin = System.realloc(block.sub(header(layout)), whole, new.size());
            if begin.is_null() {
                return begin;
            }
            let block = begin.add(header(layout));
            // It keeps its owner.
            if block.sub(1).read() != 0 {
                usage::subtract(layout.size());
                usage::add(size);
            }
            block
        }
    }
}
