//! Goal: databases make do with the files that may be open: idle ones are closed for others, and want of a
//! file is an error that passes.
//! Method: an engine on the system's files that opens few of them, and more databases than fit.

use settee_doc::{Databases, Edit, ErrorKind, Options, Stage};
use settee_io::{Env, ThreadOptions};

const FILES_MAX: usize = 24;
const DATABASE_COUNT: usize = 30;

#[tokio::test]
async fn more_databases_than_files_are_used_one_after_another_and_too_many_at_once_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let env = Env::current(ThreadOptions { files_max: FILES_MAX, ..ThreadOptions::default() });
    let engine = env.engine.clone();
    let databases = Databases::open(env, folder.path()).await.unwrap();
    for number in 0..DATABASE_COUNT {
        let database = databases.create(&format!("db{number}")).await.unwrap();
        let mut edit = Edit::parse(b"{}", &Options::default()).unwrap();
        edit.id = "a".into();
        database.update(edit, Stage::Persisted).await.unwrap();
        assert!(engine.descriptors().unwrap().count() <= FILES_MAX);
    }
    let mut held = Vec::new();
    let refused = loop {
        match databases.get(&format!("db{}", held.len())).await {
            Ok(database) => held.push(database),
            Err(error) => break error,
        }
        assert!(held.len() < DATABASE_COUNT, "all fit");
    };
    assert_eq!(refused.kind(), ErrorKind::NoDescriptor);
    // Once nobody uses them, those that are open are closed for the others.
    let refused = held.len();
    held.clear();
    databases.get(&format!("db{refused}")).await.unwrap();
    assert!(databases.health().is_ok());
    databases.close().await.unwrap();
}
