//! Goal: databases stay within the limit of open files: idle ones are closed for others, and a lack of
//! descriptors is a temporary error.
//! Method: an engine on the system's files that opens few of them, and more databases than fit.

use settee_doc::{Databases, Edit, ErrorKind, Options, Stage};
use settee_io::{Env, ThreadOptions};

const FILES_MAX: usize = 24;
const DATABASE_COUNT: usize = 30;

#[tokio::test]
async fn idle_databases_are_closed_for_want_of_files_and_too_many_in_use_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let env = Env::current(ThreadOptions { files_max: FILES_MAX, ..ThreadOptions::default() });
    let engine = env.engine.clone();
    let databases = Databases::open(env, directory.path()).await.unwrap();
    for number in 0..DATABASE_COUNT {
        let database = databases.create(&format!("db{number}")).await.unwrap();
        let mut edit = Edit::parse(b"{}", &Options::default()).unwrap();
        edit.id = "a".into();
        database.update(edit, Stage::Persisted).await.unwrap();
        assert!(engine.descriptors().unwrap().count() <= FILES_MAX);
    }
    let mut open = Vec::new();
    let refused = loop {
        match databases.get(&format!("db{}", open.len())).await {
            Ok(database) => open.push(database),
            Err(error) => break error,
        }
        assert!(open.len() < DATABASE_COUNT, "all fit");
    };
    assert_eq!(refused.kind(), ErrorKind::NoDescriptor);
    // Once they are idle, open databases are closed for the others.
    let refused = open.len();
    open.clear();
    databases.get(&format!("db{refused}")).await.unwrap();
    assert!(databases.health().is_ok());
    databases.close().await.unwrap();
}
