//! Goal: a search through a JSON index finds the documents that match and have all columns, in the index's order,
//! whatever the pages.
//! Method: rows of an index that is made in memory for each scan; searches over some documents, page by page,
//! compared with all documents matched one by one and sorted.

use std::collections::VecDeque;

use http_body_util::BodyExt;
use serde_json::{Value, json};
use settee_collate::{Collation, write_sort_key};
use settee_doc::{Databases, DatabasesOptions, Edit, Options, Stage};
use settee_io::{Env, ThreadEngine, ThreadOptions};
use settee_view::ViewsOptions;
use settee_view::mango::{NewIndex, PlanScope, plan};

use super::*;
use crate::limits::Limits;
use crate::mango::definitions::text_of;
use crate::response::memory::ResponseMemory;
use crate::response::writer::{self, Output};

/// The rows of an index, made from all documents.
struct ScannedRows(VecDeque<IndexRow>);

impl IndexRows for ScannedRows {
    async fn open(scan: IndexScan) -> Result<Option<ScannedRows>, ApiError> {
        let prefix = scan.partition.as_deref().map(partition_prefix).unwrap_or_default();
        let ranges: Vec<_> =
            scan.ranges.iter().map(|range| (range.low.sort_key(), range.high.sort_key())).collect();
        let mut rows = Vec::new();
        for (id, text) in documents(&scan.database).await {
            let Some(key) = scan.definition.row(&text).filter(|_| id.starts_with(&prefix)) else { continue };
            let bytes = sort_key(&key);
            if ranges.iter().any(|(low, high)| *low <= bytes && bytes < *high) {
                rows.push(((bytes, id.clone()), IndexRow { id, key }));
            }
        }
        rows.sort_by(|(one, _), (other, _)| one.cmp(other));
        if scan.descending {
            rows.reverse();
        }
        if let Some(Bookmark { id, key }) = scan.after {
            let after = (sort_key(&key.unwrap()), id);
            rows.retain(|(place, _)| if scan.descending { *place < after } else { *place > after });
        }
        Ok(Some(ScannedRows(rows.into_iter().map(|(_, row)| row).collect())))
    }

    async fn next(&mut self) -> Result<Option<IndexRow>, ApiError> {
        Ok(self.0.pop_front())
    }
}

fn sort_key(key: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    write_sort_key(key, Collation::Unicode, &mut bytes).unwrap();
    bytes
}

async fn documents(database: &Database) -> Vec<(String, String)> {
    let snapshot = database.snapshot();
    let rows = snapshot.all_docs(&Range::default()).await.unwrap();
    let mut documents = snapshot.read_ahead(rows, u64::MAX, None);
    let mut list = Vec::new();
    while let Some(row) = documents.next().await.unwrap() {
        let document = snapshot.read_winner(&row.key, row.winner.unwrap()).await.unwrap();
        list.push((row.key, text_of(&document)));
    }
    list
}

struct Fixture {
    views: Arc<Views>,
    database: Arc<Database>,
    limits: Limits,
}

impl Fixture {
    async fn new(databases: &Databases, docs: &[Value]) -> Fixture {
        databases.create("db").await.unwrap();
        let database = databases.get("db").await.unwrap();
        for doc in docs {
            let edit = Edit::parse(doc.to_string().as_bytes(), &Options::default()).unwrap();
            database.update(edit, Stage::Persisted).await.unwrap();
        }
        let views = Arc::new(Views::new(databases, ViewsOptions::default()));
        Fixture { views, database, limits: Limits::default() }
    }

    /// The response to a search through the index of `columns`.
    async fn search(&self, columns: &str, body: &Value) -> Value {
        let body_memory = Arc::new(BodyMemory::new(&self.limits));
        let request = FindRequest::parse(body.to_string().as_bytes()).unwrap();
        let definition = format!("{{\"index\":{{\"fields\":{columns}}}}}");
        let definition = NewIndex::parse(definition.as_bytes(), false).unwrap().definition;
        let scope = PlanScope { is_partitioned: false, in_partition: false };
        let plan = plan(&request, &[Arc::new(definition)], scope).unwrap();
        assert!(matches!(plan.index, Index::Json(_)), "{body}");
        let after = Bookmark::of(&request, &plan).unwrap();
        let (views, database) = (self.views.clone(), self.database.clone());
        let search = Search::new(views, database, self.database.snapshot(), body_memory, request, plan);
        let connection_memory = ResponseMemory::new(&self.limits).connection();
        let output = Output { limits: &self.limits, connection_memory: &connection_memory };
        let response = writer::respond(output, async move |mut out| {
            search.run::<ScannedRows>(after, &mut out).await?;
            Ok(out)
        });
        let body = response.await.unwrap().into_body().collect().await.unwrap().to_bytes();
        serde_json::from_slice(&body).unwrap()
    }

    /// The ids found page by page.
    async fn pages(&self, columns: &str, mut body: Value, limit: u64) -> Vec<String> {
        body["limit"] = json!(limit);
        let mut all = Vec::new();
        loop {
            let page = self.search(columns, &body).await;
            let found = page["docs"].as_array().unwrap().clone();
            let ids = found.iter().map(|doc| doc["_id"].as_str().unwrap().to_owned());
            all.extend(ids);
            if (found.len() as u64) < limit {
                return all;
            }
            body["bookmark"] = page["bookmark"].clone();
        }
    }

    /// The ids of documents with all columns that match, in the index's order.
    async fn expected(&self, columns: &str, selector: &Value, descending: bool) -> Vec<String> {
        let definition = format!("{{\"index\":{{\"fields\":{columns}}}}}");
        let definition = NewIndex::parse(definition.as_bytes(), false).unwrap().definition;
        let selector = settee_doc::Selector::parse(&selector.to_string()).unwrap();
        let mut rows: Vec<(Vec<u8>, String)> = Vec::new();
        for (id, text) in documents(&self.database).await {
            if let Some(key) = definition.row(&text)
                && selector.matches_json(&text)
            {
                rows.push((sort_key(&key), id));
            }
        }
        rows.sort();
        if descending {
            rows.reverse();
        }
        rows.into_iter().map(|(_, id)| id).collect()
    }
}

async fn with_databases<F: Future<Output = ()>>(test: impl FnOnce(Arc<Databases>) -> F) {
    let directory = tempfile::tempdir().unwrap();
    let engine = Arc::new(ThreadEngine::new(ThreadOptions::default()));
    let env = Env::with_engine(tokio::runtime::Handle::current(), engine);
    let databases = Databases::open_with(env, directory.path(), DatabasesOptions::default()).await.unwrap();
    test(databases.clone()).await;
    databases.close().await.unwrap();
}

/// Documents with all pairs of some values in `a` and `b`, and some without.
fn docs() -> Vec<Value> {
    let values = [json!(null), json!(1), json!(2), json!("x"), json!("Y"), json!([1, 2]), json!({"k": 1})];
    let mut docs = vec![json!({"_id": "lacks", "a": 1}), json!({"_id": "_design/d", "a": 1, "b": 1})];
    for (index, a) in values.iter().enumerate() {
        for (other, b) in values.iter().enumerate() {
            docs.push(json!({"_id": format!("{other}{index}"), "a": a, "b": b}));
        }
    }
    // Several rows of the same key.
    docs.extend((0..5).map(|n| json!({"_id": format!("{n}z"), "a": 1, "b": "x"})));
    docs
}

#[tokio::test(flavor = "multi_thread")]
async fn an_index_is_read_in_its_order_whatever_the_pages() {
    with_databases(async |databases| {
        let fixture = Fixture::new(&databases, &docs()).await;
        let selectors = [
            json!({"a": 1, "b": {"$gt": null}}),
            json!({"a": {"$gt": 1}, "b": {"$lte": "x"}}),
            json!({"a": {"$in": ["x", 1, null]}, "b": {"$gte": 1}}),
            json!({"$or": [{"a": 2, "b": 1}, {"a": 1, "b": {"$ne": 1}}]}),
            json!({"a": {"$elemMatch": {"$eq": 2}}, "b": {"$exists": true}}),
            json!({"a": {"$type": "string"}, "b": {"$regex": "."}}),
            json!({"$nor": [{"a": {"$lt": "x"}}, {"b": 2}]}),
            json!({"a": "none", "b": 1}),
        ];
        for selector in selectors {
            for direction in ["asc", "desc"] {
                let body = json!({"selector": selector, "sort": [{"a": direction}]});
                let expected = fixture.expected("[\"a\",\"b\"]", &selector, direction == "desc").await;
                for limit in [1, 3, 1000] {
                    let found = fixture.pages("[\"a\",\"b\"]", body.clone(), limit).await;
                    assert_eq!(found, expected, "{body} in pages of {limit}");
                }
            }
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_covering_index_answers_the_same_without_documents() {
    with_databases(async |databases| {
        let fixture = Fixture::new(&databases, &docs()).await;
        let selector = json!({"a": {"$gt": 1}, "b": {"$lt": []}});
        let whole = json!({"selector": selector, "execution_stats": true, "limit": 100});
        let fields =
            json!({"selector": selector, "execution_stats": true, "limit": 100, "fields": ["b", "_id"]});
        let (whole, covered) =
            (fixture.search("[\"a\",\"b\"]", &whole).await, fixture.search("[\"a\",\"b\"]", &fields).await);
        let shown: Vec<Value> = whole["docs"]
            .as_array()
            .unwrap()
            .iter()
            .map(|doc| json!({"b": doc["b"], "_id": doc["_id"]}))
            .collect();
        assert_eq!(covered["docs"], json!(shown));
        assert!(!shown.is_empty());
        let stats = &covered["execution_stats"];
        assert_eq!(
            (&stats["total_docs_examined"], &stats["results_returned"]),
            (&json!(0), &json!(shown.len()))
        );
        let keys = |found: &Value| found["execution_stats"]["total_keys_examined"].as_u64().unwrap();
        assert_eq!(keys(&covered), keys(&whole));
        assert!(whole.get("warning").is_none());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ranges_keep_other_rows_unread() {
    with_databases(async |databases| {
        let fixture = Fixture::new(&databases, &docs()).await;
        let examined = async |selector: Value| {
            let body = json!({"selector": selector, "execution_stats": true, "limit": 100});
            fixture.search("[\"a\",\"b\"]", &body).await["execution_stats"]["total_keys_examined"].clone()
        };
        assert_eq!(examined(json!({"a": 1, "b": 2})).await, 1);
        assert_eq!(examined(json!({"a": 1, "b": {"$gt": 2}})).await, 9);
        // The two values, and arrays, which match by their elements.
        assert_eq!(examined(json!({"a": {"$in": [1, 2]}, "b": 1})).await, 9);
        assert_eq!(examined(json!({"$or": [{"a": 1, "b": 1}, {"a": "x", "b": 1}]})).await, 2);
        assert_eq!(examined(json!({"a": {"$elemMatch": {"$eq": 1}}, "b": 1})).await, 7);
    })
    .await;
}
