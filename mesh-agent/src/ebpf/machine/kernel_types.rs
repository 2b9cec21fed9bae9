//! Offsets of fields in structures of the running kernel, from its own type information (BTF). The
//! kernel programs read cgroups by them (`mesh-ebpf/src/machine/cgroups.rs`).

use std::fs;
use std::path::Path;

use super::super::error::Error;

const KERNEL: &str = "/sys/kernel/btf/vmlinux";
const MAGIC: u16 = 0xeb9f;
/// Kernel: `struct btf_header`, `struct btf_type`.
const TYPE_BYTES: usize = 12;
const MEMBER_BYTES: usize = 12;
/// Kernel: `BTF_KIND_STRUCT`.
const STRUCT: u32 = 4;

/// A constant of the kernel programs, and the field whose offset it is. The field has a second name
/// in newer kernels.
const FIELDS: [(&str, &str, [&str; 2]); 7] = [
    ("CGROUP_KN", "cgroup", ["kn", ""]),
    ("CGROUP_ROOT", "cgroup", ["root", ""]),
    ("CGROUP_LEVEL", "cgroup", ["level", ""]),
    (
        "CGROUP_ROOT_HIERARCHY_ID",
        "cgroup_root",
        ["hierarchy_id", ""],
    ),
    (
        "KERNFS_NODE_PARENT",
        "kernfs_node",
        // Since Linux 6.15.
        ["parent", "__parent"],
    ),
    ("KERNFS_NODE_NAME", "kernfs_node", ["name", ""]),
    ("KERNFS_NODE_ID", "kernfs_node", ["id", ""]),
];

/// The constants with their values.
pub(super) type Offsets = [(&'static str, u32); FIELDS.len()];

/// Reads the offsets of the running kernel.
pub(super) fn offsets() -> Result<Offsets, Error> {
    let path = Path::new(KERNEL);
    let bytes = fs::read(path).map_err(|source| Error::KernelTypes {
        path: path.to_owned(),
        source,
    })?;
    find(&bytes)
}

fn find(bytes: &[u8]) -> Result<Offsets, Error> {
    let mut found = FIELDS.map(|(constant, ..)| (constant, None));
    let types = Types::parse(bytes).ok_or(Error::NoKernelTypes("the file"))?;
    types.for_each_structure(|structure, members| {
        let wanted = FIELDS.iter().zip(&mut found);
        for ((.., names), (_, offset)) in wanted.filter(|((_, of, _), _)| *of == structure) {
            *offset = offset.or_else(|| members.offset(names));
        }
    });
    let mut offsets = Offsets::default();
    for (to, (constant, offset)) in offsets.iter_mut().zip(found) {
        *to = (constant, offset.ok_or(Error::NoKernelTypes(constant))?);
    }
    Ok(offsets)
}

/// The two sections of the type information.
struct Types<'a> {
    types: &'a [u8],
    strings: &'a [u8],
}

struct Members<'a> {
    members: &'a [u8],
    strings: &'a [u8],
    has_bit_fields: bool,
}

impl<'a> Types<'a> {
    fn parse(bytes: &'a [u8]) -> Option<Types<'a>> {
        if u16::from_ne_bytes(*bytes.first_chunk()?) != MAGIC {
            return None;
        }
        let header_bytes = word(bytes, 4)?;
        let section = |offset: usize| {
            let start = header_bytes.checked_add(word(bytes, offset)?)?;
            bytes.get(start..start.checked_add(word(bytes, offset + 4)?)?)
        };
        Some(Types {
            types: section(8)?,
            strings: section(16)?,
        })
    }

    /// Calls `each` with the name and the members of every structure. Ends at a malformed one.
    fn for_each_structure(&self, mut each: impl FnMut(&str, &Members<'a>)) {
        let mut rest = self.types;
        while let Some((header, after)) = rest.split_at_checked(TYPE_BYTES) {
            let (Some(name), Some(info)) = (word(header, 0), word(header, 4)) else {
                return;
            };
            let info = info as u32;
            let kind = (info >> 24) & 0x1f;
            let bytes = tail_bytes(kind, (info & 0xffff) as usize);
            let Some((tail, next)) = bytes.and_then(|bytes| after.split_at_checked(bytes)) else {
                return;
            };
            rest = next;
            if kind == STRUCT {
                let members = Members {
                    members: tail,
                    strings: self.strings,
                    has_bit_fields: info >> 31 != 0,
                };
                each(text(self.strings, name), &members);
            }
        }
    }
}

impl Members<'_> {
    /// Returns the offset in bytes of the member with one of the names.
    fn offset(&self, names: &[&str]) -> Option<u32> {
        self.members.chunks_exact(MEMBER_BYTES).find_map(|member| {
            let name = text(self.strings, word(member, 0)?);
            let bits = word(member, 8)? as u32;
            // The upper byte is the width of a bit field.
            let bits = if self.has_bit_fields {
                bits & 0x00ff_ffff
            } else {
                bits
            };
            (!name.is_empty() && names.contains(&name)).then_some(bits / 8)
        })
    }
}

/// Returns the number of bytes after the header of a type, by kind (`BTF_KIND_*`) and its number of
/// parts.
fn tail_bytes(kind: u32, parts: usize) -> Option<usize> {
    Some(match kind {
        // Pointers, forward declarations, names and qualifiers of other types.
        2 | 7..=12 | 16 | 18 => 0,
        // Integers, variables, tags of declarations.
        1 | 14 | 17 => 4,
        // Arrays.
        3 => 12,
        // Structures, unions, sections of data, enumerations of 64 bits.
        STRUCT | 5 | 15 | 19 => MEMBER_BYTES * parts,
        // Enumerations, parameters of functions.
        6 | 13 => 8 * parts,
        _ => return None,
    })
}

fn word(bytes: &[u8], offset: usize) -> Option<usize> {
    let bytes = bytes.get(offset..)?.first_chunk()?;
    Some(u32::from_ne_bytes(*bytes) as usize)
}

fn text(strings: &[u8], offset: usize) -> &str {
    let bytes = strings.get(offset..).unwrap_or_default();
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(0);
    std::str::from_utf8(&bytes[..end]).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Type information with one structure for each entry, after an integer and a function.
    fn types(structures: &[(&str, &[(&str, u32)])], bit_fields: bool) -> Vec<u8> {
        let mut strings = vec![0];
        let mut types: Vec<u32> = vec![0, 1 << 24, 4, 32, 0, 13 << 24 | 1, 1, 0, 1];
        let mut name = |text: &str| {
            let offset = strings.len() as u32;
            strings.extend(text.as_bytes());
            strings.push(0);
            offset
        };
        for (structure, members) in structures {
            let info = u32::from(bit_fields) << 31 | STRUCT << 24 | members.len() as u32;
            types.extend([name(structure), info, 64]);
            for (member, bits) in *members {
                types.extend([name(member), 1, *bits]);
            }
        }
        let types: Vec<u8> = types.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let mut bytes = MAGIC.to_ne_bytes().to_vec();
        bytes.extend([1, 0]);
        let lengths = [24, 0, types.len(), types.len(), strings.len()];
        bytes.extend(lengths.iter().flat_map(|word| (*word as u32).to_ne_bytes()));
        [bytes, types, strings].concat()
    }

    const CGROUP: &[(&str, u32)] = &[("self", 0), ("root", 64), ("kn", 128), ("level", 192)];

    fn kernel(node: &[(&str, u32)]) -> Vec<u8> {
        let structures: [(&str, &[(&str, u32)]); 3] = [
            ("cgroup", CGROUP),
            ("cgroup_root", &[("kf_root", 0), ("hierarchy_id", 256)]),
            ("kernfs_node", node),
        ];
        types(&structures, false)
    }

    #[test]
    fn offsets_are_found_by_old_and_new_names() {
        let old = kernel(&[("parent", 64), ("name", 128), ("id", 320)]);
        let new = kernel(&[("__parent", 64), ("name", 128), ("id", 320)]);
        for bytes in [old, new] {
            let expected = [
                ("CGROUP_KN", 16),
                ("CGROUP_ROOT", 8),
                ("CGROUP_LEVEL", 24),
                ("CGROUP_ROOT_HIERARCHY_ID", 32),
                ("KERNFS_NODE_PARENT", 8),
                ("KERNFS_NODE_NAME", 16),
                ("KERNFS_NODE_ID", 40),
            ];
            assert_eq!(find(&bytes).unwrap(), expected);
        }
    }

    #[test]
    fn width_of_a_bit_field_is_not_part_of_an_offset() {
        let bytes = types(&[("cgroup", &[("level", 7 << 24 | 192)])], true);
        let mut found = None;
        Types::parse(&bytes)
            .unwrap()
            .for_each_structure(|_, members| found = members.offset(&["level", ""]));
        assert_eq!(found, Some(24));
    }

    #[test]
    fn missing_field_and_damaged_file_are_errors() {
        let error = find(&kernel(&[("parent", 64), ("name", 128)])).unwrap_err();
        assert!(error.to_string().contains("KERNFS_NODE_ID"), "{error}");
        let whole = kernel(&[("parent", 64), ("name", 128), ("id", 320)]);
        for end in 0..whole.len() {
            let _ = find(&whole[..end]);
        }
        assert!(find(&whole[..whole.len() / 2]).is_err());
        assert!(find(b"").is_err());
    }

    #[test]
    fn running_kernel_has_every_field() {
        if !Path::new(KERNEL).exists() {
            return;
        }
        let offsets = offsets().unwrap();
        assert!(offsets.iter().all(|(_, offset)| *offset < 64 * 1024));
        assert_ne!(offsets[0].1, offsets[1].1);
    }
}
