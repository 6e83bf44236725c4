//! Goal: attachments are stored once, shared between revisions, and removed with the last one that has them,
//! even if an upload, the power or an edit was interrupted.
//! Method: in the simulation; contents of all sizes around a chunk's, compared with the database's contents.

use std::future::poll_fn;
use std::path::Path;
use std::pin::pin;

use settee_doc::{
    CHUNK_BYTES, Content, Database, Databases, Document, Edit, ErrorKind, NewAttachment, Options, Revision,
    Stage, digest_text,
};
use settee_sim::{Sim, SimDisk, seeds};

use crate::common::with_database;

/// Pseudo-random bytes.
fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    (0..length).map(|_| next()).collect()
}

async fn upload(database: &Database, id: &str, name: &str, kind: &str, bytes: &[u8]) -> NewAttachment {
    let mut uploading = database.upload(id, kind, false, u64::MAX);
    for part in bytes.chunks(100_000) {
        uploading.write(part).await.unwrap();
    }
    let content = Content::Stored(uploading.finish(None).await.unwrap());
    NewAttachment { name: name.into(), content_type: kind.into(), revpos: None, content }
}

async fn put(database: &Database, edit: Edit) -> Revision {
    database.update(edit, Stage::Persisted).await.unwrap()
}

async fn content(database: &Database, document: &Document, name: &str, decode: bool) -> Vec<u8> {
    let attachment = document.attachments.iter().find(|other| other.name == name).expect("it is there");
    let mut reader = database.snapshot().attachment(&document.id, attachment, None, decode);
    let mut all = Vec::new();
    while let Some(bytes) = reader.next().await.unwrap() {
        all.extend_from_slice(&bytes);
    }
    all
}

/// Bytes of the database's live records.
fn live(database: &Database) -> u64 {
    database.info().active_bytes
}

#[test]
fn attachments_of_any_size_and_type_are_read_unchanged() {
    with_database(1, |database| async move {
        let sizes = [0, 1, 64 << 10, (64 << 10) + 1, CHUNK_BYTES, CHUNK_BYTES + 1, 5 * CHUNK_BYTES / 2];
        for (index, size) in sizes.into_iter().enumerate() {
            let id = format!("doc-{index}");
            let mut text = noise(size, 3);
            text.iter_mut().for_each(|byte| *byte = b'a' + *byte % 4);
            let raw = noise(size, 7);
            let mut edit = Edit::empty(&id);
            edit.attachments.push(upload(&database, &id, "text", "text/plain; charset=utf-8", &text).await);
            edit.attachments.push(upload(&database, &id, "raw", "image/png", &raw).await);
            put(&database, edit).await;
            let document = database.snapshot().document(&id).await.unwrap();
            let [first, second] = &document.attachments[..] else { panic!("{document:?}") };
            assert_eq!((first.length, second.length), (size as u64, size as u64));
            assert_eq!((first.gzip_length.is_some(), second.gzip_length), (true, None));
            assert!(size < 1000 || first.stored_length() < first.length / 2, "{first:?}");
            assert!(content(&database, &document, "text", true).await == text, "size {size}");
            assert!(content(&database, &document, "raw", true).await == raw, "size {size}");
            assert_ne!(content(&database, &document, "text", false).await, text);
            for range in [0..1, 1..CHUNK_BYTES as u64, CHUNK_BYTES as u64 - 1..CHUNK_BYTES as u64 + 1] {
                let range = range.start.min(size as u64)..range.end.min(size as u64);
                let mut reader = database.snapshot().attachment(&id, second, Some(range.clone()), false);
                let mut part = Vec::new();
                while let Some(bytes) = reader.next().await.unwrap() {
                    part.extend_from_slice(&bytes);
                }
                assert!(part == raw[range.start as usize..range.end as usize], "size {size} {range:?}");
            }
        }
    });
}

#[test]
fn stubs_share_content_and_unreferenced_content_is_removed() {
    with_database(2, |database| async move {
        let bytes = noise(3 * CHUNK_BYTES, 1);
        let empty = live(&database);
        let mut edit = Edit::empty("doc");
        edit.attachments.push(upload(&database, "doc", "file", "image/png", &bytes).await);
        put(&database, edit).await;
        let with_one = live(&database);
        assert!(with_one - empty > bytes.len() as u64);
        for _ in 0..20 {
            let document = database.snapshot().document("doc").await.unwrap();
            put(&database, Edit::again(&document)).await;
        }
        assert!(live(&database) < with_one + 4096, "{} {with_one}", live(&database));
        let document = database.snapshot().document("doc").await.unwrap();
        assert_eq!(document.attachments[0].revpos, 1);
        assert!(content(&database, &document, "file", true).await == bytes);

        // A conflict that has it too keeps it.
        let mut other = Edit::again(&document);
        other.revision = Some(Revision { generation: 22, id: [255; 16].into() });
        other.history = vec![[255; 16].into(), document.revision.id.clone()];
        let mut sibling = other.clone();
        sibling.revision = Some(Revision { generation: 22, id: [3; 16].into() });
        sibling.history[0] = [3; 16].into();
        for edit in [other, sibling] {
            database.replicate_all(vec![edit], Stage::Persisted).await.unwrap().pop().unwrap().unwrap();
        }
        let winner = database.snapshot().document("doc").await.unwrap();
        assert_eq!(winner.revision.id, [255; 16].into());
        let mut edit = Edit::again(&winner);
        edit.attachments.clear();
        put(&database, edit).await;
        let leaves = database.snapshot().leaves("doc").await.unwrap();
        let loser = &leaves.iter().find(|leaf| leaf.revision.id == [3; 16].into()).unwrap().revision;
        let loser = database.snapshot().revision("doc", loser, false).await.unwrap().pop().unwrap();
        assert!(content(&database, &loser, "file", true).await == bytes);
        database.update(Edit::delete("doc", Some(loser.revision)), Stage::Persisted).await.unwrap();
        assert!(live(&database) < empty + 8192, "{} {empty}", live(&database));
    });
}

#[test]
fn an_unresolved_stub_and_a_wrong_digest_are_refused() {
    with_database(3, |database| async move {
        let text = r#"{"_id":"doc","_attachments":{"a":{"stub":true}}}"#;
        let edit = Edit::parse(text.as_bytes(), &Options::default()).unwrap();
        let refused = database.update(edit, Stage::Persisted).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::MissingStub);
        let mut uploading = database.upload("doc", "text/plain", false, u64::MAX);
        uploading.write(b"abc").await.unwrap();
        let refused = uploading.finish(Some([1; 16])).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::DigestMismatch);
        let mut uploading = database.upload("doc", "text/plain", false, 10);
        assert_eq!(uploading.write(&[0; 11]).await.unwrap_err().kind(), ErrorKind::AttachmentTooLarge);
    });
}

#[test]
fn inline_attachments_have_the_digest_of_their_stored_bytes() {
    with_database(4, |database| async move {
        let text = r#"{"_id":"doc","x":1,"_attachments":{
            "plain.bin":{"content_type":"application/octet-stream","data":"aGVsbG8="},
            "no-type":{"data":""}}}"#;
        let edit = Edit::parse(text.as_bytes(), &Options::default()).unwrap();
        put(&database, edit).await;
        let document = database.snapshot().document("doc").await.unwrap();
        assert_eq!(content(&database, &document, "plain.bin", true).await, b"hello");
        let mut json = Vec::new();
        document.write_json(&settee_doc::Extras::default(), &mut json);
        let json = String::from_utf8(json).unwrap();
        // `echo -n hello | md5sum`
        let stub = r#""plain.bin":{"content_type":"application/octet-stream","revpos":1,"length":5,"digest":"md5-XUFAKrxLKna5cZ2REBfFkg==","stub":true}"#;
        assert!(json.contains(stub), "{json}");
        assert!(json.contains(r#""x":1,"_attachments":{"#), "{json}");
        for bad in
            [r#"{"a":{"data":"*"}}"#, r#"{"a":{}}"#, r#"{"_a":{"data":""}}"#, r#"{"":{"data":""}}"#, "[]"]
        {
            let text = format!(r#"{{"_attachments":{bad}}}"#);
            let refused = Edit::parse(text.as_bytes(), &Options::default()).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::BadRequest, "{bad}");
        }
    });
}

/// Words drawn by a linear congruential generator, `length` bytes of them.
fn words(length: usize) -> Vec<u8> {
    const WORDS: [&str; 12] = [
        "alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa", "lambda", "mu",
    ];
    let (mut text, mut state) = (String::new(), 1_u64);
    while text.len() < length {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        match state >> 60 {
            0 => text.push_str(&(state >> 20).to_string()),
            _ => text.push_str(WORDS[(state >> 33) as usize % 12]),
        }
        text.push(' ');
    }
    text.truncate(length);
    text.into_bytes()
}

#[test]
fn compressed_attachments_have_zlibs_digests_at_level_8() {
    // Python: zlib.compressobj(8, zlib.DEFLATED, 31, 8), which is what CouchDB calls.
    let expected = [
        (0, "md5-cCkGbCesb17xjWYNV0GXmg=="),
        (5, "md5-NQuKAKVOCU8GGBmkG0qdiQ=="),
        (300, "md5-rsg7bnfLgNca2K3jgPxVZQ=="),
        (2_500, "md5-pHLyK3DteIfqUmGPjtmFqA=="),
        (70_000, "md5-Yv3wIlU1dnz7ac3Sn7KcTA=="),
        (1_500_000, "md5-2YvvDSvVYkfORCNe6cBsxw=="),
    ];
    with_database(9, |database| async move {
        for (length, digest) in expected {
            let new = upload(&database, "doc", "text", "text/plain", &words(length)).await;
            let Content::Stored(upload) = new.content else { panic!("it is stored") };
            assert_eq!(digest_text(upload.digest()), digest, "{length} bytes");
        }
    });
}

#[test]
fn compressed_uploads_are_verified_and_stored_unchanged() {
    with_database(5, |database| async move {
        let text = noise(3 * CHUNK_BYTES / 2, 5);
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut encoder, &text).unwrap();
        let packed = encoder.finish().unwrap();
        let mut garbled = packed.clone();
        garbled[packed.len() / 2] ^= 0xFF;
        for bad in [&text[..], &packed[..packed.len() - 1], &garbled, &[&packed[..], b"more"].concat(), b""] {
            let mut uploading = database.upload("doc", "text/plain", true, u64::MAX);
            let refused = match uploading.write(bad).await {
                Ok(()) => uploading.finish(None).await.map(drop),
                Err(error) => Err(error),
            };
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::BadRequest, "{} bytes", bad.len());
        }
        let mut uploading = database.upload("doc", "text/plain", true, u64::MAX);
        for part in packed.chunks(1000) {
            uploading.write(part).await.unwrap();
        }
        let content_of = Content::Stored(uploading.finish(None).await.unwrap());
        let mut edit = Edit::empty("doc");
        let (name, content_type) = ("file".to_owned(), "text/plain".to_owned());
        edit.attachments.push(NewAttachment { name, content_type, revpos: None, content: content_of });
        put(&database, edit).await;
        let document = database.snapshot().document("doc").await.unwrap();
        let attachment = &document.attachments[0];
        let lengths = (attachment.length, attachment.gzip_length);
        assert_eq!(lengths, (text.len() as u64, Some(packed.len() as u64)));
        assert!(content(&database, &document, "file", true).await == text);
        assert!(content(&database, &document, "file", false).await == packed);
    });
}

#[test]
fn the_same_attachments_make_the_same_revision_and_others_another() {
    let revisions: Vec<Revision> = [("a/b", 1), ("a/b", 1), ("a/c", 1), ("a/b", 2)]
        .into_iter()
        .map(|(kind, seed)| {
            let sim = Sim::new(seed + 10);
            let env = sim.env();
            sim.run(async {
                let databases = Databases::open(env, Path::new("/data")).await.unwrap();
                let database = databases.create("db").await.unwrap();
                let mut edit = Edit::empty("doc");
                edit.attachments.push(upload(&database, "doc", "file", kind, &noise(100, seed)).await);
                put(&database, edit).await
            })
            .unwrap()
        })
        .collect();
    assert_eq!(revisions[0], revisions[1]);
    assert_ne!(revisions[0], revisions[2]);
    assert_ne!(revisions[0], revisions[3]);
}

#[test]
fn unreferenced_uploads_are_removed_also_after_a_power_loss() {
    for seed in seeds(30) {
        let disk = SimDisk::new(seed);
        let sim = Sim::with_disk(&disk);
        let env = sim.env();
        let before = std::cell::Cell::new(0);
        sim.run(async {
            let databases = Databases::open(env, Path::new("/data")).await.unwrap();
            let database = databases.create("db").await.unwrap();
            put(&database, Edit::empty("first")).await;
            before.set(live(&database));
            let before = before.get();
            // One upload is interrupted, one has its edit refused, and one is cut off by the power loss.
            let mut broken = database.upload("doc", "image/png", false, u64::MAX);
            broken.write(&noise(2 * CHUNK_BYTES, 1)).await.unwrap();
            drop(broken);
            let mut refused = Edit::empty("first");
            refused
                .attachments
                .push(upload(&database, "first", "file", "image/png", &noise(CHUNK_BYTES + 7, 2)).await);
            let refused = database.update(refused, Stage::Persisted).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Conflict);
            put(&database, Edit::empty("second")).await;
            assert!(live(&database) < before + 4096, "seed={seed}: {} {before}", live(&database));
            let mut cut = database.upload("doc", "image/png", false, u64::MAX);
            cut.write(&noise(3 * CHUNK_BYTES, 3)).await.unwrap();
            put(&database, Edit::empty("third")).await;
            std::mem::forget(cut);
            disk.cut_power();
        });
        assert_ne!(before.get(), 0, "seed={seed}");
        let before = before.get();
        let disk = disk.after_power_loss();
        let sim = Sim::with_disk(&disk);
        let env = sim.env();
        sim.run(async {
            let databases = Databases::open(env, Path::new("/data")).await.unwrap();
            let database = databases.get("db").await.unwrap();
            put(&database, Edit::empty("fourth")).await;
            assert!(live(&database) < before + 8192, "seed={seed}: {} {before}", live(&database));
        })
        .unwrap();
    }
}

/// A replicated edit as a replicator sends it; its path is given by the hashes' digits, newest first.
async fn replicate(
    database: &Database,
    start: u32,
    path: &[u8],
    attachments: &str,
) -> Result<Revision, ErrorKind> {
    let ids: Vec<String> =
        path.iter().map(|digit| format!("\"{}\"", format!("{digit:02x}").repeat(16))).collect();
    let revisions = format!(r#"{{"start":{start},"ids":[{}]}}"#, ids.join(","));
    let text = format!(r#"{{"_id":"doc","_revisions":{revisions},"_attachments":{attachments}}}"#);
    let edit = Edit::parse(text.as_bytes(), &Options::default()).unwrap();
    let mut outcomes = database.replicate_all(vec![edit], Stage::Persisted).await.unwrap();
    outcomes.pop().unwrap().map_err(|error| error.kind())
}

async fn revision(database: &Database, revision: &Revision) -> Document {
    database.snapshot().revision("doc", revision, false).await.unwrap().pop().unwrap()
}

#[test]
fn a_stub_resolves_to_its_ancestors_attachment_whichever_leaf_wins() {
    for (own, other) in [(0xff, 0), (0, 0xff)] {
        for with_digest in [false, true] {
            with_database(6, |database| async move {
                replicate(&database, 1, &[1], "{}").await.unwrap();
                // "AAA" and "BBB"
                let data = |text: &str| format!(r#"{{"x":{{"revpos":2,"data":"{text}"}}}}"#);
                let first = replicate(&database, 2, &[own, 1], &data("QUFB")).await.unwrap();
                let second = replicate(&database, 2, &[other, 1], &data("QkJC")).await.unwrap();
                let digest = digest_text(&revision(&database, &first).await.attachments[0].digest);
                let digest = if with_digest { format!(r#","digest":"{digest}""#) } else { String::new() };
                let stub = format!(r#"{{"x":{{"stub":true,"revpos":2{digest}}}}}"#);
                let third = replicate(&database, 3, &[0x0c, own, 1], &stub).await.unwrap();
                assert_eq!(database.snapshot().leaves("doc").await.unwrap().len(), 2);
                for (leaf, expected) in [(third, b"AAA"), (second, b"BBB")] {
                    let document = revision(&database, &leaf).await;
                    assert_eq!(content(&database, &document, "x", true).await, expected, "{own} {leaf}");
                }
            });
        }
    }
}

#[test]
fn a_stub_of_a_missing_ancestor_resolves_to_the_same_content_or_fails() {
    with_database(7, |database| async move {
        replicate(&database, 1, &[1], r#"{"y":{"data":"UlJS"}}"#).await.unwrap();
        let both = r#"{"x":{"data":"QUFB"},"y":{"stub":true,"revpos":1}}"#;
        let first = replicate(&database, 2, &[0xff, 1], both).await.unwrap();
        let first = revision(&database, &first).await;
        let digest = digest_text(&first.attachments[0].digest);
        // The revision that added it is an ancestor of both leaves, so it is the same attachment.
        let old = r#"{"y":{"stub":true,"revpos":1}}"#;
        let sibling = replicate(&database, 2, &[0x22, 1], old).await.unwrap();
        let sibling = revision(&database, &sibling).await;
        assert_eq!(content(&database, &sibling, "y", true).await, b"RRR");
        let missing = Err(ErrorKind::MissingStub);
        assert_eq!(replicate(&database, 2, &[0x33, 9], old).await, missing, "another root");
        let no_revpos = r#"{"y":{"stub":true}}"#;
        assert_eq!(replicate(&database, 2, &[0x33, 1], no_revpos).await, missing);
        // Of an ancestor that was never replicated here only the digest is known.
        let stub = |digest: &str| format!(r#"{{"x":{{"stub":true,"revpos":2,"digest":"{digest}"}}}}"#);
        let wrong = stub("md5-AAAAAAAAAAAAAAAAAAAAAA==");
        let elsewhere = stub("md5-?").replace('2', "9");
        for stub in [&wrong, r#"{"x":{"stub":true,"revpos":2}}"#, &elsewhere] as [&str; 3] {
            assert_eq!(replicate(&database, 3, &[0x0d, 0x77, 1], stub).await, missing, "{stub}");
        }
        let third = replicate(&database, 3, &[0x0d, 0x77, 1], &stub(&digest)).await.unwrap();
        let third = revision(&database, &third).await;
        assert_eq!(content(&database, &third, "x", true).await, b"AAA");
    });
}

#[test]
fn new_attachments_get_the_generation_of_their_revision() {
    with_database(8, |database| async move {
        let update = async |text: String| {
            let revision = put(&database, Edit::parse(text.as_bytes(), &Options::default()).unwrap()).await;
            let document = database.snapshot().document("doc").await.unwrap();
            assert_eq!(document.revision, revision);
            let mut came: Vec<(String, u32)> = document
                .attachments
                .into_iter()
                .map(|attachment| (attachment.name, attachment.revpos))
                .collect();
            came.sort();
            (revision, came)
        };
        let of = |all: &[(&str, u32)]| all.iter().map(|(name, revpos)| ((*name).into(), *revpos)).collect();
        let (first, came) =
            update(r#"{"_id":"doc","_attachments":{"a":{"revpos":7,"data":"QUFB"}}}"#.into()).await;
        let expected: Vec<(String, u32)> = of(&[("a", 1)]);
        assert_eq!(came, expected);
        // A client sends back the document it has read, with other content.
        let attachments = r#"{"a":{"revpos":1,"data":"QkJC"},"b":{"revpos":1,"data":"QUFB"}}"#;
        let (second, came) =
            update(format!(r#"{{"_id":"doc","_rev":"{first}","_attachments":{attachments}}}"#)).await;
        let expected: Vec<(String, u32)> = of(&[("a", 2), ("b", 2)]);
        assert_eq!(came, expected);
        let attachments = r#"{"a":{"stub":true,"revpos":2},"b":{"revpos":2,"data":"QUFB"}}"#;
        let (_, came) =
            update(format!(r#"{{"_id":"doc","_rev":"{second}","_attachments":{attachments}}}"#)).await;
        let expected: Vec<(String, u32)> = of(&[("a", 2), ("b", 3)]);
        assert_eq!(came, expected);
        // A replica states the generation that added it.
        let fifth = replicate(&database, 5, &[0x55, 0x44], r#"{"a":{"revpos":3,"data":"QUFB"}}"#).await;
        assert_eq!(revision(&database, &fifth.unwrap()).await.attachments[0].revpos, 3);
    });
}

/// A future's output, and the number of times it yielded before.
async fn count_polls<F: Future>(future: F) -> (F::Output, usize) {
    let mut future = pin!(future);
    let mut count = 0;
    let output = poll_fn(|context| {
        count += 1;
        future.as_mut().poll(context)
    });
    (output.await, count)
}

#[test]
fn compression_and_decompression_yield_to_other_tasks() {
    with_database(9, |database| async move {
        let mut text = noise(2 << 20, 3);
        text.iter_mut().for_each(|byte| *byte = b'a' + *byte % 4);
        let mut uploading = database.upload("doc", "text/plain", false, u64::MAX);
        let (written, polls) = count_polls(uploading.write(&text)).await;
        written.unwrap();
        println!("2 MiB of text compressed in {polls} turns");
        assert!(polls > 25, "{polls}");

        let zeros = vec![0; 16 << 20];
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        std::io::Write::write_all(&mut encoder, &zeros).unwrap();
        let packed = encoder.finish().unwrap();
        assert!(packed.len() < 25_000);
        let mut uploading = database.upload("doc", "text/plain", true, u64::MAX);
        let (written, polls) = count_polls(uploading.write(&packed)).await;
        written.unwrap();
        println!("{} bytes that unfold to 16 MiB taken in {polls} turns", packed.len());
        assert!(polls > 12, "{polls}");

        let content = Content::Stored(uploading.finish(None).await.unwrap());
        let mut edit = Edit::empty("doc");
        let (name, content_type) = ("file".to_owned(), "text/plain".to_owned());
        edit.attachments.push(NewAttachment { name, content_type, revpos: None, content });
        put(&database, edit).await;
        let document = database.snapshot().document("doc").await.unwrap();
        let mut reader = database.snapshot().attachment("doc", &document.attachments[0], None, true);
        let (mut length, mut longest) = (0, 0);
        while let Some(piece) = reader.next().await.unwrap() {
            assert!(piece.iter().all(|byte| *byte == 0));
            (length, longest) = (length + piece.len(), longest.max(piece.len()));
        }
        println!("read in pieces of up to {longest} bytes");
        assert_eq!(length, zeros.len());
        assert!(longest < 2 << 20, "{longest}");
    });
}
