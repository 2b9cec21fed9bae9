//! bpf(2) commands that aya lacks for the hooks used here: create a link on any hook, open a pinned
//! one, replace its program atomically, and read its target; query other programs' attachments; and
//! one map type, a single frozen blob.
//!
//! The argument structures are prefixes of `union bpf_attr`; the kernel treats the rest as zero.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const MAP_CREATE: libc::c_int = 0;
const MAP_LOOKUP_ELEM: libc::c_int = 1;
const MAP_UPDATE_ELEM: libc::c_int = 2;
const OBJ_PIN: libc::c_int = 6;
const OBJ_GET: libc::c_int = 7;
const OBJ_GET_INFO_BY_FD: libc::c_int = 15;
const PROG_QUERY: libc::c_int = 16;
const RAW_TRACEPOINT_OPEN: libc::c_int = 17;
const MAP_FREEZE: libc::c_int = 22;
const LINK_CREATE: libc::c_int = 28;
const LINK_UPDATE: libc::c_int = 29;

const MAP_TYPE_ARRAY: u32 = 2;
/// `BPF_LINK_TYPE_*` numbers, which determine the layout of the link's information.
const LINK_TYPE_RAW_TRACEPOINT: u32 = 1;
const LINK_TYPE_CGROUP: u32 = 3;
const LINK_TYPE_NETNS: u32 = 5;
/// `BPF_LINK_TYPE_TCX`.
const LINK_TYPE_TCX: u32 = 11;
/// The kernel limits programs per cgroup and hook to 64.
const QUERY_MAX: usize = 64;

/// A link's hook, by its number in `enum bpf_attach_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum AttachType {
    SockOps = 3,
    Bind4 = 8,
    Bind6 = 9,
    Connect4 = 10,
    Connect6 = 11,
    GetSockOpt = 21,
    GetPeerName4 = 29,
    GetPeerName6 = 30,
    SkLookup = 36,
    TcxEgress = 47,
}

/// The target of a link; 0 after the target was deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkTarget {
    Cgroup { id: u64 },
    Netns { inode: u32 },
    Interface { index: u32 },
    RawTracepoint,
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkInfo {
    pub program: u32,
    pub target: LinkTarget,
}

/// Programs attached directly to one cgroup or network namespace at one hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachments {
    /// `BPF_F_ALLOW_*`; 0 for an exclusive attachment.
    pub flags: u32,
    pub programs: Vec<u32>,
}

#[repr(C)]
#[derive(Default)]
struct LinkCreate {
    program: u32,
    target: u32,
    attach_type: u32,
    flags: u32,
}

#[repr(C)]
#[derive(Default)]
struct RawTracepoint {
    name: u64,
    program: u32,
    pad: u32,
}

#[repr(C)]
#[derive(Default)]
struct LinkUpdate {
    link: u32,
    program: u32,
    flags: u32,
    old_program: u32,
}

#[repr(C)]
#[derive(Default)]
struct Object {
    path: u64,
    fd: u32,
    flags: u32,
}

#[repr(C)]
#[derive(Default)]
struct InfoRequest {
    fd: u32,
    length: u32,
    info: u64,
}

/// The first fields of `struct bpf_link_info`, and of its union.
#[repr(C)]
#[derive(Default)]
struct RawLinkInfo {
    kind: u32,
    id: u32,
    program: u32,
    /// The union below is aligned to eight bytes.
    pad: u32,
    /// For cgroup links the whole word is the id; for netns and tcx links the lower half is the
    /// inode or the interface index.
    target: u64,
    attach_type: u64,
}

#[repr(C)]
#[derive(Default)]
struct Query {
    target: u32,
    attach_type: u32,
    query_flags: u32,
    attach_flags: u32,
    programs: u64,
    count: u32,
    pad: u32,
}

#[repr(C)]
#[derive(Default)]
struct MapCreate {
    kind: u32,
    key_size: u32,
    value_size: u32,
    entries: u32,
    flags: u32,
    inner: u32,
    numa_node: u32,
    name: [u8; 16],
}

#[repr(C)]
#[derive(Default)]
struct MapElement {
    map: u32,
    pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
#[derive(Default)]
struct MapOnly {
    map: u32,
}

/// Runs one bpf(2) command.
///
/// # Safety
/// `T` must be a prefix of the member of `union bpf_attr` that `command` uses, and every pointer in
/// it must be valid for the command's access.
unsafe fn bpf<T>(command: libc::c_int, attributes: &mut T) -> io::Result<libc::c_int> {
    // SAFETY: the kernel accesses at most `size_of::<T>()` bytes of the structure; the caller
    // guarantees the rest.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_mut(attributes),
            size_of::<T>(),
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result as libc::c_int)
}

/// Like [`bpf`], for commands that return a new file descriptor.
///
/// # Safety
/// As for [`bpf`].
unsafe fn bpf_fd<T>(command: libc::c_int, attributes: &mut T) -> io::Result<OwnedFd> {
    // SAFETY: the caller guarantees it for `bpf`, and the kernel has just created the descriptor.
    unsafe { bpf(command, attributes).map(|fd| OwnedFd::from_raw_fd(fd)) }
}

/// Borrows, so that an owned descriptor stays open during the call that uses its number.
fn raw(fd: &impl AsFd) -> u32 {
    fd.as_fd().as_raw_fd().cast_unsigned()
}

fn c_path(path: &Path) -> io::Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other)
}

/// Attaches a program to a cgroup or a network namespace. The attachment lasts as long as the link.
pub fn create_link(
    program: impl AsFd,
    target: impl AsFd,
    attach_type: AttachType,
) -> io::Result<OwnedFd> {
    let mut attributes = LinkCreate {
        program: raw(&program),
        target: raw(&target),
        attach_type: attach_type as u32,
        // A link always allows other programs; the kernel rejects the corresponding flag here.
        flags: 0,
    };
    // SAFETY: the structure is `bpf_attr.link_create` and holds no pointers.
    unsafe { bpf_fd(LINK_CREATE, &mut attributes) }
}

/// Attaches a program to the egress of an interface in the calling thread's network namespace.
pub fn create_tcx_link(program: impl AsFd, interface: u32) -> io::Result<OwnedFd> {
    let mut attributes = LinkCreate {
        program: raw(&program),
        target: interface,
        attach_type: AttachType::TcxEgress as u32,
        flags: 0,
    };
    // SAFETY: the structure is `bpf_attr.link_create` and holds no pointers.
    unsafe { bpf_fd(LINK_CREATE, &mut attributes) }
}

/// Attaches a program to a tracepoint of the kernel. The link cannot be updated.
pub fn attach_raw_tracepoint(program: impl AsFd, name: &str) -> io::Result<OwnedFd> {
    let name = CString::new(name).map_err(io::Error::other)?;
    let mut attributes = RawTracepoint {
        name: name.as_ptr().expose_provenance() as u64,
        program: raw(&program),
        pad: 0,
    };
    // SAFETY: the structure is `bpf_attr.raw_tracepoint`; the name lives until the call returns.
    unsafe { bpf_fd(RAW_TRACEPOINT_OPEN, &mut attributes) }
}

/// Replaces the program of a link atomically: each packet or call runs exactly one of the two.
pub fn update_link(link: impl AsFd, program: impl AsFd) -> io::Result<()> {
    let mut attributes = LinkUpdate {
        link: raw(&link),
        program: raw(&program),
        ..LinkUpdate::default()
    };
    // SAFETY: the structure is `bpf_attr.link_update` and holds no pointers.
    unsafe { bpf(LINK_UPDATE, &mut attributes) }.map(drop)
}

pub fn link_info(link: impl AsFd) -> io::Result<LinkInfo> {
    let mut info = RawLinkInfo::default();
    let mut attributes = InfoRequest {
        fd: raw(&link),
        length: size_of::<RawLinkInfo>() as u32,
        info: (&raw mut info).expose_provenance() as u64,
    };
    // SAFETY: the structure is `bpf_attr.info`; the kernel writes at most `length` bytes to `info`,
    // which lives until the call returns.
    unsafe { bpf(OBJ_GET_INFO_BY_FD, &mut attributes) }?;
    let target = match info.kind {
        LINK_TYPE_RAW_TRACEPOINT => LinkTarget::RawTracepoint,
        LINK_TYPE_CGROUP => LinkTarget::Cgroup { id: info.target },
        LINK_TYPE_NETNS => LinkTarget::Netns {
            inode: info.target as u32,
        },
        LINK_TYPE_TCX => LinkTarget::Interface {
            index: info.target as u32,
        },
        _ => LinkTarget::Other,
    };
    Ok(LinkInfo {
        program: info.program,
        target,
    })
}

/// Pins an object (a map, a program, a link) on a bpffs, which keeps it alive.
pub fn pin(object: impl AsFd, path: &Path) -> io::Result<()> {
    let path = c_path(path)?;
    let mut attributes = Object {
        path: path.as_ptr().expose_provenance() as u64,
        fd: raw(&object),
        flags: 0,
    };
    // SAFETY: the structure is the start of `bpf_attr`'s object member; the path lives until the
    // call returns.
    unsafe { bpf(OBJ_PIN, &mut attributes) }.map(drop)
}

pub fn open_pin(path: &Path) -> io::Result<OwnedFd> {
    let path = c_path(path)?;
    let mut attributes = Object {
        path: path.as_ptr().expose_provenance() as u64,
        ..Object::default()
    };
    // SAFETY: as for `pin`.
    unsafe { bpf_fd(OBJ_GET, &mut attributes) }
}

/// Returns the programs attached directly to `target` (a cgroup or network namespace) at one hook.
pub fn query(target: impl AsFd, attach_type: AttachType) -> io::Result<Attachments> {
    let mut programs = vec![0u32; QUERY_MAX];
    let mut attributes = Query {
        target: raw(&target),
        attach_type: attach_type as u32,
        programs: programs.as_mut_ptr().expose_provenance() as u64,
        count: QUERY_MAX as u32,
        ..Query::default()
    };
    // SAFETY: the structure is `bpf_attr.query`; the kernel writes at most `count` words to
    // `programs`, which lives until the call returns.
    unsafe { bpf(PROG_QUERY, &mut attributes) }?;
    programs.truncate(attributes.count as usize);
    Ok(Attachments {
        flags: attributes.attach_flags,
        programs,
    })
}

/// Creates a frozen map that contains exactly these bytes.
pub fn create_blob(name: &str, bytes: &[u8]) -> io::Result<OwnedFd> {
    let mut attributes = MapCreate {
        kind: MAP_TYPE_ARRAY,
        key_size: size_of::<u32>() as u32,
        value_size: u32::try_from(bytes.len()).map_err(io::Error::other)?,
        entries: 1,
        ..MapCreate::default()
    };
    // The last byte stays zero as terminator.
    for (to, from) in attributes.name[..15].iter_mut().zip(name.bytes()) {
        *to = from;
    }
    // SAFETY: the structure is `bpf_attr`'s map member and holds no pointers.
    let map = unsafe { bpf_fd(MAP_CREATE, &mut attributes) }?;
    let key = 0u32;
    let mut element = MapElement {
        map: raw(&map),
        key: (&raw const key).expose_provenance() as u64,
        value: bytes.as_ptr().expose_provenance() as u64,
        ..MapElement::default()
    };
    // SAFETY: the kernel reads `key_size` and `value_size` bytes, the lengths of the two buffers.
    unsafe { bpf(MAP_UPDATE_ELEM, &mut element) }?;
    let mut freeze = MapOnly { map: raw(&map) };
    // SAFETY: the kernel reads only the descriptor.
    unsafe { bpf(MAP_FREEZE, &mut freeze) }?;
    Ok(map)
}

/// Reads a map of [`create_blob`].
pub fn read_blob(map: impl AsFd) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0u8; value_size(&map)?];
    let key = 0u32;
    let mut element = MapElement {
        map: raw(&map),
        key: (&raw const key).expose_provenance() as u64,
        value: bytes.as_mut_ptr().expose_provenance() as u64,
        ..MapElement::default()
    };
    // SAFETY: the kernel writes `value_size` bytes, which is the buffer's length.
    unsafe { bpf(MAP_LOOKUP_ELEM, &mut element) }?;
    Ok(bytes)
}

fn value_size(map: impl AsFd) -> io::Result<usize> {
    /// The first fields of `struct bpf_map_info`.
    #[repr(C)]
    #[derive(Default)]
    struct RawMapInfo {
        kind: u32,
        id: u32,
        key_size: u32,
        value_size: u32,
    }
    let mut info = RawMapInfo::default();
    let mut attributes = InfoRequest {
        fd: raw(&map),
        length: size_of_val(&info) as u32,
        info: (&raw mut info).expose_provenance() as u64,
    };
    // SAFETY: as in `link_info`.
    unsafe { bpf(OBJ_GET_INFO_BY_FD, &mut attributes) }?;
    Ok(info.value_size as usize)
}
