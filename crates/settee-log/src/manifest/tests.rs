//! Goal: a manifest is read as it was written, and anything else is refused.
//! Method: golden text; every bit flipped; lines replaced, with a valid checksum.

use super::*;

fn manifest(segment_count: u32) -> Manifest {
    let segment = |number| SegmentName {
        first: number,
        last: number,
        generation: 1,
        epoch: 1,
        bytes: u64::from(u32::MAX),
        clean_to: u64::from(u32::MAX),
        timeline: 1,
        digest: FileDigest { length: u64::from(u32::MAX), checksum: FileChecksum([number as u8; 32]) },
    };
    let first = Timelines::first(TimelineId([0xa1; 16]));
    Manifest {
        number: 7,
        next_file: 12,
        listed_to: segment_count,
        timelines: first.branch(TimelineId([0xb2; 16]), Seq(17)),
        segments: (1..=segment_count).map(segment).collect(),
        user: "tree 7\nnote with spaces\n".to_owned(),
    }
}

#[test]
fn what_is_encoded_is_decoded_and_every_flipped_bit_is_found() {
    let bytes = manifest(3).encode().into_bytes();
    assert_eq!(Manifest::decode(&bytes), Ok(manifest(3)));
    for bit in 0..8 * bytes.len() {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(Manifest::decode(&flipped).is_err(), "bit {bit}");
    }
}

#[test]
fn a_manifest_has_its_golden_text() {
    let (one, two, checksum) = ("a1".repeat(16), "b2".repeat(16), "01".repeat(32));
    let body = format!(
        "settee manifest 3\nnumber 7\nnext-file 12\nlisted-to 1\n\
         timeline {one}\ntimeline {two} {one} 17\n\
         segment 1 1 1 1 4294967295 4294967295 1 4294967295 {checksum}\n\
         user tree 7\nuser note with spaces\n"
    );
    let text = manifest(1).encode();
    assert_eq!(text, format!("{body}checksum {:016x}\n", twox_hash::XxHash3_64::oneshot(body.as_bytes())));
}

/// The manifest with these replacements and a valid checksum.
fn decode_with(replaced: &[(&str, &str)]) -> Result<Manifest, ManifestError> {
    let text = manifest(2).encode();
    let mut body = text[..text.rfind("checksum ").unwrap()].to_owned();
    for (from, to) in replaced {
        assert!(body.contains(from), "{from}");
        body = body.replacen(from, to, 1);
    }
    let checksum = twox_hash::XxHash3_64::oneshot(body.as_bytes());
    Manifest::decode(format!("{body}checksum {checksum:016x}\n").as_bytes())
}

#[test]
fn a_manifest_of_another_version_is_distinguished_from_damage() {
    assert_eq!(decode_with(&[]), Ok(manifest(2)));
    assert_eq!(decode_with(&[("manifest 3", "manifest 2")]), Err(ManifestError::Version(2)));
    assert_eq!(decode_with(&[("manifest 3", "manifest 40")]), Err(ManifestError::Version(40)));
    let refused = decode_with(&[("settee manifest 3", "settee backup 3")]);
    assert_eq!(refused, Err(ManifestError::Damaged("it isn't a manifest")));
}

#[test]
fn a_manifest_that_contradicts_itself_is_refused() {
    let (one, two) = ("a1".repeat(16), "b2".repeat(16));
    let (first, second) = (format!("timeline {one}\n"), format!("timeline {two} {one} 17\n"));
    let invalid = "a line is invalid";
    let repeated = format!("{second}timeline {one} {two} 17\n");
    let back = format!("{second}timeline {} {two} 16\n", "c3".repeat(16));
    let cases: [(&str, &str, &str); 10] = [
        (&second, &format!("timeline {two} {two} 17\n"), invalid),
        (&second, &format!("timeline {two} {one}\n"), invalid),
        (&second, &format!("timeline {two} {one} 17 \n"), invalid),
        (&first, &format!("timeline {}\n", "A1".repeat(16)), invalid),
        (&second, &repeated, "it names a timeline twice"),
        (&second, &back, "its timelines are out of order"),
        (&second, "", "a segment is of a timeline that it doesn't name"),
        (" 1 4294967295 01", " 1 0 01", "a segment has no length"),
        (" 01010101", " 010101", invalid),
        (" 01010101", " 01010101 01", invalid),
    ];
    for (from, to, what) in cases {
        assert_eq!(decode_with(&[(from, to)]), Err(ManifestError::Damaged(what)), "{to}");
    }
    assert_eq!(
        decode_with(&[(&first, ""), (&second, "")]),
        Err(ManifestError::Damaged("it names no timeline"))
    );
}

#[test]
fn a_manifest_that_could_not_be_read_is_refused_and_the_one_before_stays() {
    let sim = settee_sim::Sim::new(7);
    let (env, directory) = (sim.env(), Path::new("/data/log"));
    sim.run(async {
        directory::create(&*env.engine, directory).await.unwrap();
        let (small, long) = (manifest(3), manifest(200_000));
        small.write(&env, directory).await.unwrap();
        let refused = long.write(&env, directory).await;
        let is_refused = matches!(&refused, Err(EditError::TooLong { size, size_max, .. })
            if size > size_max && *size == long.encode().len() as u64);
        assert!(is_refused, "{refused:?}");
        let files = directory::list(&*env.engine, directory).await.unwrap();
        assert_eq!(files.len(), 1, "nothing was written");
        assert_eq!(Manifest::read(&env, directory).await.unwrap(), Some(small));
        // The largest manifest that fits is read again.
        let line = (long.encode().len() - manifest(199_000).encode().len()) / 1000;
        let most = manifest((SIZE_MAX as usize / (line + 1)) as u32);
        most.write(&env, directory).await.unwrap();
        assert_eq!(Manifest::read(&env, directory).await.unwrap(), Some(most));
    })
    .unwrap();
}
