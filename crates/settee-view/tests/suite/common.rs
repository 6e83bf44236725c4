//! A database whose views are compared with rows made in Rust from its documents.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use settee_collate::{Collation, write_sort_key};
use settee_doc::{Database, Databases, Edit, Extras, Options, Revision, Stage};
use settee_io::Env;
use settee_view::{DesignViews, Grouping, Groups, IndexSnapshot, KeyRange, MapRows, Views, ViewsOptions};

/// Emits keys of all types, equal keys, keys that are equal for the collation only, and large values.
const ROWS: &str = r#"function (doc) {
    if (doc.key !== undefined) emit(doc.key, doc.n);
    if (doc.tags) doc.tags.forEach(function (tag) { emit([tag, doc.n % 3], {n: doc.n}); });
    if (doc.size) emit('large', new Array(doc.size + 1).join('x'));
}"#;

/// Emits numbers only, under arrays of up to three elements, of which one may be very long.
const NUMBERS: &str = "function (doc) {
    var key = [doc.n % 2, doc.n % 5, doc.n % 3].slice(0, doc.n % 4);
    if (doc.n % 7 === 0) key.push(new Array(5001).join('x') + doc.n % 3);
    emit(key, doc.n);
}";

/// The key that [`NUMBERS`] emits, and how much of it its place in the order shows.
fn numbers_key(n: u64) -> Vec<Value> {
    let mut key: Vec<Value> = [n % 2, n % 5, n % 3].map(Value::from)[..(n % 4) as usize].to_vec();
    if n.is_multiple_of(7) {
        key.push(json!(format!("{}{}", "x".repeat(5_000), n % 3)));
    }
    key
}

const DESIGN: &str = "_design/d";

/// Random numbers from a seed (splitmix64).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, count: u64) -> u64 {
        self.next() % count
    }

    pub(crate) fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    fn choice<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }
}

/// A row: its sort key, the document's id, key and value.
type ModelRow = (Vec<u8>, String, Value, Value);

pub(crate) struct Subject {
    pub(crate) databases: Arc<Databases>,
    pub(crate) database: Arc<Database>,
    pub(crate) views: Arc<Views>,
}

/// A value's place in the order. Of a long key, what follows its first 4,080 bytes is ordered by a hash.
fn sort_key(value: &Value, collation: Collation) -> Vec<u8> {
    let mut key = Vec::new();
    write_sort_key(&value.to_string(), collation, &mut key).unwrap();
    if key.len() > 4_080 {
        let hash = blake3::hash(&key);
        key.truncate(4_080);
        key.extend_from_slice(&hash.as_bytes()[..16]);
    }
    key
}

fn random_key(random: &mut Random) -> Value {
    let keys = [
        json!(null),
        json!(true),
        json!(1),
        json!(-3.5),
        json!("a"),
        json!("A"),
        json!("é"),
        json!("e\u{301}"),
        json!("large"),
        json!([]),
        json!(["a", 1]),
        json!({"a": 1}),
        json!("x".repeat(5_000)),
        json!("x".repeat(5_000) + "y"),
        json!("x".repeat(5_000) + "z"),
    ];
    random.choice(&keys).clone()
}

impl Subject {
    /// Opens the databases of a data directory, and creates the database if necessary.
    pub(crate) async fn open(env: &Env) -> Subject {
        let databases = Databases::open(env.clone(), Path::new("/data")).await.unwrap();
        if !databases.contains("db") {
            databases.create_closed("db").await.unwrap();
        }
        let database = databases.get("db").await.unwrap();
        let options =
            ViewsOptions { merge_bytes: 4_000, cache_bytes_max: 64 << 10, ..ViewsOptions::default() };
        let views = Arc::new(Views::new(&databases, options));
        let subject = Subject { databases, database, views };
        if subject.database.snapshot().find(DESIGN).await.unwrap().is_none() {
            subject.put_design(&["_sum", "_stats"]).await;
        }
        subject
    }

    /// Stores the design document, with these reduce functions of the numbers.
    pub(crate) async fn put_design(&self, reduces: &[&str]) {
        let mut views = json!({
            "rows": {"map": ROWS},
            "rows_too": {"map": ROWS, "reduce": "_count"},
            "raw": {"map": ROWS, "options": {"collation": "raw"}},
            "counted": {"map": NUMBERS, "reduce": "function (keys, values, rereduce) {\n\
                return rereduce ? sum(values) : values.length; }"},
        });
        for (index, reduce) in reduces.iter().enumerate() {
            views[format!("reduced{index}")] = json!({"map": NUMBERS, "reduce": reduce});
        }
        let present = self.database.snapshot().find(DESIGN).await.unwrap();
        let mut document = json!({"_id": DESIGN, "views": views});
        if let Some(summary) = present {
            document["_rev"] = json!(summary.revision.to_string());
        }
        self.update(&document).await.unwrap();
    }

    pub(crate) async fn update(&self, document: &Value) -> settee_doc::Result<Revision> {
        let edit = Edit::parse(document.to_string().as_bytes(), &Options::default()).unwrap();
        self.database.update(edit, Stage::Persisted).await
    }

    /// Puts, deletes or purges random documents.
    pub(crate) async fn edit(&self, random: &mut Random) {
        for _ in 0..1 + random.below(12) {
            let id = format!("doc{}", random.below(40));
            let winner = self.database.snapshot().find(&id).await.unwrap();
            if let Some(winner) = &winner
                && random.one_in(12)
            {
                let purged = [(id.clone(), vec![winner.revision.clone()])];
                drop(self.database.purge(&purged).await);
                continue;
            }
            let n = random.below(1_000);
            let mut document = json!({"_id": id, "n": n});
            if random.one_in(2) {
                document["key"] = random_key(random);
            }
            if random.one_in(3) {
                let tags: Vec<Value> = (0..random.below(4)).map(|_| random_key(random)).collect();
                document["tags"] = json!(tags);
            }
            if random.one_in(10) {
                document["size"] = json!(random.below(20_000));
            }
            let live = winner.filter(|winner| !winner.deleted);
            if let Some(live) = live {
                document["_rev"] = json!(live.revision.to_string());
                if random.one_in(4) {
                    document["_deleted"] = json!(true);
                }
            }
            drop(self.update(&document).await);
        }
    }

    /// The indexes, brought up to date.
    pub(crate) async fn built(&self) -> Arc<DesignViews> {
        let design = self.views.design(&self.database, DESIGN).await.unwrap();
        for view in &design.design.views {
            design.add_reduces(view).await.unwrap();
        }
        design.build(&self.database, self.database.snapshot().update_seq()).await.unwrap();
        design
    }

    /// All documents, by id.
    pub(crate) async fn documents(&self) -> BTreeMap<String, Value> {
        let snapshot = self.database.snapshot();
        let mut rows = snapshot.all_docs(&settee_doc::Range::default()).await.unwrap();
        let mut documents = BTreeMap::new();
        while let Some(row) = rows.next().await.unwrap() {
            let document = snapshot.read(row.id, row.summary, row.body).await.unwrap();
            let mut text = Vec::new();
            document.write_json(&Extras::default(), &mut text);
            documents.insert(document.id.clone(), serde_json::from_slice(&text).unwrap());
        }
        documents.retain(|id, _| !id.starts_with("_design/"));
        documents
    }
}

/// The rows of [`ROWS`] in the view's order.
pub(crate) fn model_rows(documents: &BTreeMap<String, Value>, collation: Collation) -> Vec<ModelRow> {
    let mut rows = Vec::new();
    for (id, document) in documents {
        let n = document["n"].clone();
        let mut emit = |key: Value, value: Value| {
            rows.push((sort_key(&key, collation), id.clone(), key, value));
        };
        if let Some(key) = document.get("key") {
            emit(key.clone(), n.clone());
        }
        for tag in document.get("tags").and_then(Value::as_array).into_iter().flatten() {
            emit(json!([tag, n.as_u64().unwrap() % 3]), json!({"n": n}));
        }
        if let Some(size) = document.get("size").and_then(Value::as_u64)
            && size > 0
        {
            emit(json!("large"), json!("x".repeat(size as usize)));
        }
    }
    rows.sort_by_cached_key(|(key, id, _, value)| (key.clone(), id.clone(), sort_key(value, Collation::Raw)));
    rows
}

async fn read(rows: &mut MapRows) -> Vec<(String, Value, Value)> {
    let mut all = Vec::new();
    while let Some(row) = rows.next().await.unwrap() {
        let parse = |text: &str| serde_json::from_str(text).unwrap();
        all.push((row.id.clone(), parse(&row.key), parse(&row.value)));
    }
    all
}

fn shown(rows: &[ModelRow]) -> Vec<(String, Value, Value)> {
    rows.iter().map(|(_, id, key, value)| (id.clone(), key.clone(), value.clone())).collect()
}

fn check_same(found: &[(String, Value, Value)], expected: &[(String, Value, Value)], case: &str) {
    let place = (0..found.len().max(expected.len())).find(|place| found.get(*place) != expected.get(*place));
    let Some(place) = place else { return };
    let text = |rows: &[(String, Value, Value)]| format!("{:.300}", format!("{:?}", rows.get(place)));
    let (count, found, expected) = (found.len(), text(found), text(expected));
    panic!("{case}: row {place} of {count} is {found}, not {expected}");
}

/// In descending order, but rows of one document with equal keys ascend.
fn descending(rows: &[ModelRow]) -> Vec<ModelRow> {
    let mut groups: Vec<&[ModelRow]> =
        rows.chunk_by(|one, other| (&one.0, &one.1) == (&other.0, &other.1)).collect();
    groups.reverse();
    groups.concat()
}

/// Compares all rows of an index with the model.
pub(crate) async fn check_rows(
    index: IndexSnapshot,
    documents: &BTreeMap<String, Value>,
    collation: Collation,
    case: &str,
) {
    let expected = model_rows(documents, collation);
    assert_eq!(index.row_count(), expected.len() as u64, "{case}");
    let all = settee_view::RowRange::all();
    let mut rows = MapRows::new(index, vec![all], false, 0, u64::MAX);
    let found = read(&mut rows).await;
    check_same(&found, &shown(&expected), case);
}

/// Compares the result of random queries with the model.
pub(crate) async fn check_queries(
    design: &DesignViews,
    documents: &BTreeMap<String, Value>,
    random: &mut Random,
    case: &str,
) {
    let view = design.view("rows").unwrap();
    let (index, space) = (design.snapshot(view).unwrap(), design.space(view, None));
    let expected = model_rows(documents, Collation::Unicode);
    for query in 0..8 {
        let mut keys =
            KeyRange { inclusive_end: random.one_in(2), descending: random.one_in(2), ..KeyRange::default() };
        if random.one_in(2) {
            keys.start = Some(random_key(random).to_string());
            keys.start_id = random.one_in(2).then(|| format!("doc{}", random.below(40)));
        }
        if random.one_in(2) {
            keys.end = Some(random_key(random).to_string());
            keys.end_id = random.one_in(2).then(|| format!("doc{}", random.below(40)));
        }
        let (skip, limit) = (random.below(5) * random.below(5), *random.choice(&[0, 3, u64::MAX]));
        let case = format!("{case} query={query} {keys:?} skip={skip} limit={limit}");
        let in_order = if keys.descending { descending(&expected) } else { expected.clone() };
        let of_query: Vec<ModelRow> = in_order.into_iter().filter(|row| is_in(row, &keys)).collect();
        let shown_range: Range<usize> = {
            let start = (skip as usize).min(of_query.len());
            start..(start + usize::try_from(limit).unwrap_or(usize::MAX).min(of_query.len() - start))
        };
        let range = space.range(&keys).unwrap();
        let mut rows = MapRows::new(index.clone(), vec![range], keys.descending, skip, limit);
        let found = read(&mut rows).await;
        check_same(&found, &shown(&of_query[shown_range]), &case);
    }
}

fn is_in(row: &ModelRow, keys: &KeyRange) -> bool {
    let compare = |key: &Option<String>, id: &Option<String>| {
        let key: Value = serde_json::from_str(key.as_ref()?).unwrap();
        let order = row.0.cmp(&sort_key(&key, Collation::Unicode));
        Some(order.then_with(|| id.as_ref().map_or(std::cmp::Ordering::Equal, |id| row.1.cmp(id))))
    };
    let (start, end) = (compare(&keys.start, &keys.start_id), compare(&keys.end, &keys.end_id));
    let (start, end) = match keys.descending {
        true => (start.map(std::cmp::Ordering::reverse), end.map(std::cmp::Ordering::reverse)),
        false => (start, end),
    };
    start.is_none_or(|order| order.is_ge())
        && end.is_none_or(|order| if keys.inclusive_end { order.is_le() } else { order.is_lt() })
}

/// Compares reduced values, of all groupings, with the model.
pub(crate) async fn check_reduces(design: &DesignViews, documents: &BTreeMap<String, Value>, case: &str) {
    for view in &design.design.views {
        let Some(reduce) = view.reduce.as_deref().filter(|_| view.name != "rows_too") else { continue };
        for level in 0..5 {
            let mut groups: BTreeMap<Vec<u8>, (Value, Vec<u64>)> = BTreeMap::new();
            for document in documents.values() {
                let n = document["n"].as_u64().unwrap();
                let mut key = numbers_key(n);
                key.truncate(level);
                let key = if level == 0 { Value::Null } else { json!(key) };
                let group = groups.entry(sort_key(&key, Collation::Unicode));
                group.or_insert_with(|| (key, Vec::new())).1.push(n);
            }
            let value = |numbers: &[u64]| {
                let (sum, count) = (numbers.iter().sum::<u64>(), numbers.len());
                match reduce {
                    "_sum" => json!(sum),
                    "_count" => json!(count),
                    "_stats" => json!({
                        "sum": sum,
                        "count": count,
                        "min": numbers.iter().min(),
                        "max": numbers.iter().max(),
                        "sumsqr": numbers.iter().map(|n| n * n).sum::<u64>(),
                    }),
                    _ => json!(count),
                }
            };
            let descending = level % 2 == 1;
            let mut expected: Vec<(Value, Value)> =
                groups.into_values().map(|(key, numbers)| (key, value(&numbers))).collect();
            if descending {
                expected.reverse();
            }
            let grouping = if level == 0 { Grouping::All } else { Grouping::Level(level) };
            let (index, space) = (design.snapshot(view).unwrap(), design.space(view, None));
            let ranges = vec![space.all()];
            let mut groups = Groups::new(index, space, reduce, grouping, ranges, descending, 0, u64::MAX);
            let mut found = Vec::new();
            while let Some(group) = groups.next().await.unwrap() {
                let value = group.value.unwrap();
                let parse = |text: &[u8]| serde_json::from_slice::<Value>(text).unwrap();
                found.push((parse(group.key.as_bytes()), parse(&value)));
            }
            assert_eq!(found, expected, "{case} {} level={level}", view.name);
        }
    }
}
