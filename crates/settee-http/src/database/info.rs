//! What is reported of a database.

use settee_doc::{Database, Seq};

use crate::json;

/// The response to `GET /{db}`.
pub(crate) fn info(database: &Database) -> Vec<u8> {
    let info = database.info();
    let mut text = Vec::with_capacity(512);
    let mut member = |name: &str, value: &dyn Fn(&mut Vec<u8>)| {
        text.push(if text.is_empty() { b'{' } else { b',' });
        text.push(b'"');
        text.extend_from_slice(name.as_bytes());
        text.extend_from_slice(b"\":");
        value(&mut text);
    };
    member("instance_start_time", &|text| start_time(database, text));
    member("db_name", &|text| settee_doc::write_json_string(database.name(), text));
    member("purge_seq", &|text| json::quoted_seq(database, Seq(info.purge_seq), text));
    member("update_seq", &|text| json::quoted_seq(database, info.update_seq, text));
    member("sizes", &|text| {
        let sizes = format!(
            "{{\"file\":{},\"external\":{},\"active\":{}}}",
            info.file_bytes, info.external_bytes, info.active_bytes
        );
        text.extend_from_slice(sizes.as_bytes());
    });
    let props = if database.is_partitioned() { "{\"partitioned\":true}" } else { "{}" };
    member("props", &|text| text.extend_from_slice(props.as_bytes()));
    member("doc_del_count", &|text| json::number(info.doc_del_count, text));
    member("doc_count", &|text| json::number(info.doc_count, text));
    // The format number of CouchDB 3.5. Clients display it; it says nothing about the files here.
    member("disk_format_version", &|text| text.push(b'8'));
    member("compact_running", &|text| {
        text.extend_from_slice(database.is_compacting().to_string().as_bytes())
    });
    member("cluster", &|text| {
        let cluster = format!("{{\"q\":{},\"n\":1,\"w\":1,\"r\":1}}", database.shard_count());
        text.extend_from_slice(cluster.as_bytes());
    });
    text.extend_from_slice(b"}\n");
    text
}

/// `instance_start_time` as a string, as in CouchDB.
pub(super) fn start_time(database: &Database, text: &mut Vec<u8>) {
    text.push(b'"');
    json::number(database.created_us(), text);
    text.push(b'"');
}
