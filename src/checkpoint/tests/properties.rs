//! The pure parts over arbitrary input.

use proptest::collection::vec;
use proptest::prelude::*;

use crate::checkpoint::pax::{self, MapReader, Segment, Time};
use crate::checkpoint::plan::{self, END, Entries, Entry, Kind};

fn part() -> impl Strategy<Value = Vec<u8>> {
    let odd = vec(any::<u8>().prop_filter("no separators", |byte| !matches!(byte, 0 | b'/')), 1..120);
    prop_oneof![odd, "[a-z]{1,8}".prop_map(String::into_bytes)]
        .prop_filter("a real name", |name| name != b"." && name != b"..")
}

fn path() -> impl Strategy<Value = Vec<u8>> {
    vec(part(), 1..4).prop_map(|parts| parts.join(&b'/'))
}

fn segments() -> impl Strategy<Value = (u64, Vec<Segment>)> {
    vec((1_u64..1 << 40, 0_u64..5000), 0..50).prop_map(|gaps| {
        let (mut end, mut segments) = (0, Vec::new());
        for (gap, len) in gaps {
            segments.push(Segment { offset: end + gap, len });
            end += gap + len;
        }
        (end + 7, segments)
    })
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        Just(Kind::Directory),
        Just(Kind::Fifo),
        (0_u64..100_000).prop_map(|size| Kind::File { size, sparse: None }),
        segments().prop_map(|(size, segments)| Kind::File { size, sparse: Some(segments) }),
        path().prop_map(Kind::HardLink),
        vec(1_u8.., 1..4000).prop_map(Kind::Symlink),
        (0_u32..4096, 0_u32..1 << 20).prop_map(|(major, minor)| Kind::CharDevice(major, minor)),
        (0_u32..4096, 0_u32..1 << 20).prop_map(|(major, minor)| Kind::BlockDevice(major, minor)),
    ]
}

fn entry() -> impl Strategy<Value = Entry> {
    let time = (any::<i64>(), 0_u32..1_000_000_000).prop_map(|(secs, nanos)| Time { secs, nanos });
    let xattr = (vec(1_u8.., 0..30), vec(any::<u8>(), 0..300));
    let xattrs = vec(xattr.prop_map(|(name, value)| ([b"user.".to_vec(), name].concat(), value)), 0..5);
    (path(), kind(), 0_u32..0o10000, any::<u32>(), any::<u32>(), time, xattrs)
        .prop_map(|(path, kind, mode, uid, gid, mtime, xattrs)| Entry { path, kind, mode, uid, gid, mtime, xattrs })
}

proptest! {
    #[test]
    fn entries_come_back_as_they_were(entries in vec(entry(), 0..8)) {
        let mut bytes = Vec::new();
        for entry in &entries {
            plan::encode(entry, &mut bytes);
            let length = entry.data_len();
            bytes.resize(bytes.len() + usize::try_from(length).unwrap() + plan::padding(length), b'x');
        }
        bytes.extend_from_slice(&END);
        prop_assert_eq!(plan::decode(&bytes).unwrap(), entries);
    }

    #[test]
    fn no_bytes_make_the_decoder_panic(bytes in vec(any::<u8>(), 0..4096)) {
        let _ = plan::decode(&bytes);
    }

    /// Damage to a real archive reaches deeper than noise does.
    #[test]
    fn no_damage_makes_the_decoder_panic(entries in vec(entry(), 1..4), flips in vec((any::<usize>(), any::<u8>()), 1..6), fix in any::<bool>()) {
        let mut bytes = Vec::new();
        for entry in &entries {
            plan::encode(entry, &mut bytes);
            let length = entry.data_len();
            bytes.resize(bytes.len() + usize::try_from(length).unwrap() + plan::padding(length), 0);
        }
        bytes.extend_from_slice(&END);
        for (at, byte) in flips {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        if fix {
            // With its checksum mended, a damaged header is believed.
            let sum: u32 = bytes[..512].iter().enumerate().map(|(i, &b)| if (148..156).contains(&i) { 32 } else { u32::from(b) }).sum();
            bytes[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        }
        let _ = plan::decode(&bytes);
    }

    #[test]
    fn records_come_back_whatever_is_in_them(list in vec((vec(any::<u8>().prop_filter("key", |byte| *byte != b'='), 0..300), vec(any::<u8>(), 0..2000)), 0..10)) {
        let mut bytes = Vec::new();
        for (key, value) in &list {
            pax::push_record(&mut bytes, key, value);
        }
        let found: Vec<_> = pax::records(&bytes).map(|record| record.map(|(key, value)| (key.to_vec(), value.to_vec())).unwrap()).collect();
        prop_assert_eq!(found, list);
    }

    #[test]
    fn times_come_back(secs in any::<i64>(), nanos in 0_u32..1_000_000_000) {
        let time = Time { secs, nanos };
        prop_assert_eq!(Time::from_pax(time.to_pax().as_bytes()), Ok(time));
    }

    #[test]
    fn attribute_names_come_back(name in vec(any::<u8>(), 0..100)) {
        let encoded = pax::encode_xattr_name(&name);
        prop_assert!(!encoded.contains(&b'='));
        prop_assert_eq!(pax::decode_xattr_name(&encoded), name);
    }

    #[test]
    fn maps_come_back((size, segments) in segments()) {
        let bytes = pax::encode_map(&segments);
        let mut reader = MapReader::default();
        let mut found = None;
        for block in bytes.chunks_exact(512) {
            prop_assert!(found.is_none());
            found = reader.block(block.try_into().unwrap()).unwrap();
        }
        pax::check_map(&segments, size).unwrap();
        prop_assert_eq!(found, Some(segments));
    }

    /// Whatever the text, what is accepted stays below the root.
    #[test]
    fn accepted_paths_stay_in_the_tree(path in prop_oneof![vec(any::<u8>(), 0..60), "(\\.{0,3}/|a/|b){0,8}".prop_map(String::into_bytes)]) {
        if let Ok(parts) = plan::components(&path) {
            for part in parts {
                prop_assert!(!part.is_empty() && part != b"." && part != b".." && !part.contains(&b'/') && !part.contains(&0));
            }
        } else {
            let climbs = path.split(|&byte| byte == b'/').any(|part| part == b"..");
            prop_assert!(path.is_empty() || path[0] == b'/' || climbs || path.contains(&0));
        }
    }
}

#[test]
fn times_before_1970_are_written_as_gnu_tar_reads_them() {
    for (secs, nanos, text) in
        [(-1, 500_000_000, "-0.500000000"), (-2, 250_000_000, "-1.750000000"), (-3, 0, "-3"), (4, 1, "4.000000001")]
    {
        assert_eq!(Time { secs, nanos }.to_pax(), text);
    }
    assert_eq!(Time::from_pax(b"-0.5"), Ok(Time { secs: -1, nanos: 500_000_000 }));
    assert_eq!(Time::from_pax(b"1.12345678999"), Ok(Time { secs: 1, nanos: 123_456_789 }));
    for wrong in ["", "-", ".5", "1.x", "1e3", "9223372036854775808", "--1"] {
        assert!(Time::from_pax(wrong.as_bytes()).is_err(), "{wrong}");
    }
}

#[test]
fn the_header_of_a_file_is_plain_ustar() {
    let kind = Kind::File { size: 5, sparse: None };
    let mtime = Time { secs: 1, nanos: 0 };
    let mut bytes = Vec::new();
    plan::encode(
        &Entry { path: b"a/b".to_vec(), kind, mode: 0o4755, uid: 1000, gid: 7, mtime, xattrs: vec![] },
        &mut bytes,
    );
    assert_eq!(bytes.len(), 512);
    assert_eq!(&bytes[..4], b"a/b\0");
    assert_eq!(&bytes[100..108], b"0004755\0");
    assert_eq!(&bytes[257..265], b"ustar\x0000");
    let mut entries = Entries::new(&bytes[..]);
    assert_eq!(entries.next_entry().unwrap().unwrap().mode, 0o4755);
}
