//! Random map functions: what people write, with JavaScript's traps in it.

use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

use crate::documents::{NAMES, ODD_NAMES};

/// Expressions and statements that only the engine runs: a plan for one of them would show.
const ENGINE_ONLY: [&str; 24] = [
    "/x/.test(doc.a)",
    "new Date(0)",
    "doc.a.match(/a/)",
    "parseInt(doc.a)",
    "parseFloat('1.5x')",
    "JSON.stringify(doc)",
    "doc.tags.sort()",
    "(1.005).toFixed(2)",
    "doc.a.toUpperCase()",
    "'É'.toLowerCase()",
    "[1,,2]",
    "[...doc.tags]",
    "({get a() { return 1; }})",
    "({toJSON: function () { return 1; }})",
    "(counter = typeof counter)",
    "this.a",
    "arguments.length",
    "eval('1')",
    "1n",
    "(function () { return 1; })()",
    "typeof later",
    "require('x')",
    "String.fromCharCode(65)",
    "'x'.localeCompare('y')",
];

/// A state of the generator: which names are declared.
pub(crate) struct Grammar<'r> {
    random: &'r mut StdRng,
    /// Assignable variables.
    locals: Vec<String>,
    constants: Vec<String>,
    helpers: Vec<&'static str>,
    next: u32,
    document: &'static str,
    budget: i32,
    is_in_loop: bool,
}

/// The source of a random map function.
pub(crate) fn function(random: &mut StdRng) -> String {
    let document = *["doc", "doc", "doc", "d", "undefined", "emitted"].choose(random).unwrap();
    let budget = random.random_range(10..60);
    let mut grammar = Grammar {
        random: &mut *random,
        locals: Vec::new(),
        constants: vec![document.to_owned()],
        helpers: Vec::new(),
        next: 0,
        document,
        budget,
        is_in_loop: false,
    };
    let source = grammar.whole();
    if random.random_bool(0.12) { damaged(&source, random) } else { source }
}

/// Tokens that change what is around them.
const TOKENS: [&str; 44] = [
    "(",
    ")",
    "{",
    "}",
    "[",
    "]",
    ";",
    ",",
    "=",
    "=>",
    ".",
    "?.",
    "?",
    ":",
    "++",
    "--",
    "!",
    "...",
    "\n",
    "var",
    "let",
    "const",
    "of",
    "in",
    "if",
    "else",
    "return",
    "break",
    "continue",
    "function",
    "'use strict'",
    "yield",
    "await",
    "static",
    "arguments",
    "eval",
    "async",
    "new",
    "delete",
    "/",
    "`",
    "\\",
    "#",
    "undefined",
];

/// The source with one or two tokens more, less, or in other places. Most such sources are no functions; one that
/// has a plan must be one for the engine too.
fn damaged(source: &str, random: &mut StdRng) -> String {
    let is_part = |char: char| char.is_alphanumeric() || char == '_' || char == '$';
    let mut tokens: Vec<String> = Vec::new();
    let mut was_part = false;
    for char in source.chars() {
        match tokens.last_mut() {
            Some(last) if was_part && is_part(char) => last.push(char),
            _ => tokens.push(char.to_string()),
        }
        was_part = is_part(char);
    }
    for _ in 0..random.random_range(1..3) {
        let at = random.random_range(0..tokens.len());
        let other = random.random_range(0..tokens.len());
        match random.random_range(0..6) {
            0 | 1 => tokens[at].clear(),
            2 => tokens.swap(at, other),
            3 => tokens[at] = tokens[other].clone(),
            4 => tokens[at] = (*TOKENS.choose(random).unwrap()).to_owned(),
            _ => tokens.insert(at, (*TOKENS.choose(random).unwrap()).to_owned()),
        }
    }
    tokens.concat()
}

impl Grammar<'_> {
    fn chance(&mut self, probability: f64) -> bool {
        self.random.random_bool(probability)
    }

    fn pick(&mut self, options: &[&str]) -> String {
        (*options.choose(self.random).unwrap()).to_owned()
    }

    fn whole(&mut self) -> String {
        let document = self.document;
        if self.chance(0.05) {
            let value = self.expression(2);
            let key = self.expression(2);
            return format!("{document} => {value} && emit({key})");
        }
        let mut body = String::new();
        if self.chance(0.15) {
            self.helpers.push("h");
            let value = self.in_function(&["p", "q"], |grammar| grammar.expression(2));
            body.push_str(&format!("function h(p, q) {{ return {value}; }}\n"));
        }
        for _ in 0..self.random.random_range(1..5) {
            body.push_str(&self.statement(3));
        }
        if self.chance(0.5) {
            let (key, value) = (self.expression(2), self.expression(2));
            body.push_str(&format!("emit({key}, {value});\n"));
        }
        let tail = self.pick(&["", "", "", ";", " // end", "\n;\n"]);
        match self.random.random_range(0..12) {
            0 => format!("({document}) => {{\n{body}}}{tail}"),
            1 => format!("function map({document}) {{\n{body}}}{tail}"),
            2 => format!("function ({document}, other) {{\n{body}}}{tail}"),
            _ => format!("function ({document}) {{\n{body}}}{tail}"),
        }
    }

    /// Generates code in which `params` are declared too, and what it declares itself isn't any more afterwards.
    fn in_function(&mut self, params: &[&str], generate: impl FnOnce(&mut Self) -> String) -> String {
        let (locals, constants, was_in_loop) = (self.locals.clone(), self.constants.clone(), self.is_in_loop);
        self.locals.extend(params.iter().map(|param| (*param).to_owned()));
        self.is_in_loop = false;
        let code = generate(self);
        (self.locals, self.constants, self.is_in_loop) = (locals, constants, was_in_loop);
        code
    }

    fn fresh(&mut self) -> String {
        self.next += 1;
        format!("v{}", self.next)
    }

    fn block(&mut self, depth: u32) -> String {
        let (locals, constants) = (self.locals.clone(), self.constants.clone());
        let mut body = String::from("{\n");
        for _ in 0..self.random.random_range(1..3) {
            body.push_str(&self.statement(depth.saturating_sub(1)));
        }
        body.push_str("}\n");
        (self.locals, self.constants) = (locals, constants);
        body
    }

    fn loop_body(&mut self, depth: u32) -> String {
        let was_in_loop = std::mem::replace(&mut self.is_in_loop, true);
        let body = self.block(depth);
        self.is_in_loop = was_in_loop;
        body
    }

    fn statement(&mut self, depth: u32) -> String {
        self.budget -= 1;
        if depth == 0 || self.budget < 0 {
            return self.emit();
        }
        match self.random.random_range(0..28) {
            0..8 => self.emit(),
            8..13 => {
                let test = self.condition();
                let body = if self.chance(0.7) { self.block(depth) } else { self.emit() };
                let other =
                    if self.chance(0.3) { format!("else {}", self.block(depth)) } else { String::new() };
                format!("if ({test}) {body}{other}")
            }
            13..16 => self.declaration(),
            16 | 17 => self.assignment(),
            18..23 => self.loops(depth),
            23 => self.switch(depth),
            24 if self.is_in_loop => {
                let test = self.condition();
                let jump = self.pick(&["break", "continue"]);
                format!("if ({test}) {jump};\n")
            }
            24 => format!("if ({}) return;\n", self.condition()),
            25 if self.chance(0.1) => format!("{};\n", self.pick(&ENGINE_ONLY)),
            25 => format!("{}\n", self.trap()),
            26 => self.mutation(),
            _ => format!("{};\n", self.expression(3)),
        }
    }

    /// Statements about frozen documents and the frame.
    fn trap(&mut self) -> String {
        let member = self.member_of_document();
        let value = self.expression(1);
        let (document, name) = (self.document, self.pick(&NAMES));
        match self.random.random_range(0..10) {
            0 => format!("if ({member}) {member}.x = {value};"),
            1 => format!("delete {member};"),
            2 if self.chance(0.3) => format!("{member}.push({value});"),
            3 => format!("{}.{} = {value};", document, name),
            4 => format!("{}.{} += {value};", document, name),
            5 => format!("{}.{}++;", document, name),
            6 => format!("if (isArray({member})) {member}.forEach(emit);"),
            7 if self.chance(0.3) => format!("emit({value}, {member}.nothing.here);"),
            8 => format!("{document}[{value}] = {value};"),
            _ => format!("void {member};"),
        }
    }

    /// Changes of the function's own values after they were emitted.
    fn mutation(&mut self) -> String {
        let made = self.fresh();
        let (value, other) = (self.expression(2), self.expression(1));
        let name = self.name();
        let mut code = match self.random.random_range(0..7) {
            0 => format!("var {made} = [{value}]; emit({made}, 1); {made}.push({other});\n"),
            1 => format!(
                "var {made} = {{a: {value}}}; emit(1, {made}); {made}.{} = {other};\n",
                identifier(&name)
            ),
            2 => format!("var {made} = {{}}; {made}[{value}] = {other}; emit({made}); delete {made}.a;\n"),
            _ => format!(
                "var {made} = [[]]; emit({made}[0], {made}); {made}[0][0] = {value}; {made}[1] = {other};\n"
            ),
        };
        self.locals.push(made.clone());
        if self.chance(0.3) {
            code.push_str(&format!("for (var k{made} in {made}) emit(k{made}, {made}[k{made}]);\n"));
        }
        code
    }

    fn emit(&mut self) -> String {
        match self.random.random_range(0..14) {
            0 => "emit();\n".to_owned(),
            1 => format!("emit({0}._id, {0});\n", self.document),
            2 => format!("emit({});\n", self.expression(2)),
            3 => format!("emit({}, null);\n", self.member_of_document()),
            4 => format!("emit([{}, {}], 1);\n", self.expression(2), self.expression(1)),
            5 => format!("emit({}, {}, {});\n", self.expression(1), self.expression(1), self.expression(1)),
            6 => format!("{} && emit({}, {});\n", self.condition(), self.expression(1), self.expression(1)),
            _ => format!("emit({}, {});\n", self.expression(2), self.expression(2)),
        }
    }

    fn declaration(&mut self) -> String {
        let name = if self.chance(0.03) {
            self.pick(&["emit", "doc", "undefined", "isArray", "length"])
        } else {
            self.fresh()
        };
        let value = self.expression(3);
        match self.random.random_range(0..7) {
            0 => {
                self.constants.push(name.clone());
                format!("const {name} = {value};\n")
            }
            1 => {
                self.locals.push(name.clone());
                format!("let {name} = {value};\n")
            }
            2 => {
                self.locals.push(name.clone());
                format!("{} {name};\n", if self.chance(0.5) { "let" } else { "var" })
            }
            3 => format!("{name} = {value}; var {name};\n"),
            _ => {
                self.locals.push(name.clone());
                format!("var {name} = {value};\n")
            }
        }
    }

    fn assignment(&mut self) -> String {
        let Some(local) = self.locals.choose(self.random).cloned() else { return self.declaration() };
        let operator = self.pick(&["=", "=", "+=", "-=", "*=", "||=", "&&=", "??="]);
        format!("{local} {operator} {};\n", self.expression(2))
    }

    fn loops(&mut self, depth: u32) -> String {
        let variable = self.fresh();
        let object = if self.chance(0.7) { self.member_of_document() } else { self.expression(2) };
        let (locals, constants) = (self.locals.clone(), self.constants.clone());
        let code = match self.random.random_range(0..9) {
            0 => {
                self.constants.push(variable.clone());
                let body = self.loop_body(depth);
                format!(
                    "if ({object}) for (var {variable} = 0; {variable} < {object}.length; {variable}++) {body}"
                )
            }
            1 => {
                self.constants.push(variable.clone());
                let body = self.loop_body(depth);
                format!("for (let {variable} = 0; {variable} < 3; ++{variable}) {body}")
            }
            2 | 3 => {
                self.locals.push(variable.clone());
                let keyword = self.pick(&["var", "let", "const"]);
                let body = self.loop_body(depth);
                format!("for ({keyword} {variable} in {object}) {body}")
            }
            4 => {
                self.locals.push(variable.clone());
                let keyword = self.pick(&["var", "let", "const"]);
                let body = self.loop_body(depth);
                format!("if (Array.isArray({object})) for ({keyword} {variable} of {object}) {body}")
            }
            5 => {
                self.constants.push(variable.clone());
                let body = self.loop_body(depth);
                format!("var {variable} = 3; while ({variable}-- > 0) {body}")
            }
            6 => {
                let body = self.in_function(&["t", "i"], |grammar| grammar.block(depth));
                format!("if (isArray({object})) {object}.forEach(function (t, i) {body});\n")
            }
            7 => {
                let value = self.in_function(&["t"], |grammar| grammar.expression(2));
                let method = self.pick(&["map", "filter", "some", "every", "find", "findIndex"]);
                format!("if (isArray({object})) emit('m', {object}.{method}(t => {value}));\n")
            }
            _ => {
                let value = self.in_function(&["s", "t"], |grammar| grammar.expression(2));
                format!("if (isArray({object})) emit('r', {object}.reduce((s, t) => {value}, 0));\n")
            }
        };
        (self.locals, self.constants) = (locals, constants);
        code
    }

    fn switch(&mut self, depth: u32) -> String {
        let value = self.expression(2);
        let mut cases = String::new();
        for _ in 0..self.random.random_range(1..4) {
            let label = if self.chance(0.2) && !cases.contains("default") {
                "default".to_owned()
            } else {
                format!("case {}", self.literal())
            };
            let body = self.block(depth);
            let end = self.pick(&["break;", "break;", ""]);
            cases.push_str(&format!("{label}: {body}{end}\n"));
        }
        format!("switch ({value}) {{\n{cases}}}\n")
    }

    fn condition(&mut self) -> String {
        let member = self.member_of_document();
        match self.random.random_range(0..12) {
            0 | 1 => member,
            2 => format!("!{member}"),
            3 | 4 => format!("{member} {} {}", self.pick(&["===", "==", "!==", "!="]), self.literal()),
            5 => format!(
                "typeof {member} === '{}'",
                self.pick(&["string", "number", "object", "undefined", "boolean", "function"])
            ),
            6 => {
                let name = self.name();
                format!("'{name}' in {}", self.document)
            }
            7 => {
                let name = self.name();
                format!("{}.hasOwnProperty('{name}')", self.document)
            }
            8 => format!("isArray({member})"),
            9 => format!("{member} && {}", self.member_of_document()),
            10 => format!("{member} || {}", self.member_of_document()),
            _ => self.expression(3),
        }
    }

    fn name(&mut self) -> String {
        if self.chance(0.12) {
            // Names with escapes mean the same to JavaScript as to JSON.
            let name = self.pick(&ODD_NAMES);
            if self.chance(0.1) { name } else { name.replace("\\ud83d\\ude00", "b").replace("\\ud83d", "c") }
        } else {
            self.pick(&NAMES)
        }
    }

    fn member_of_document(&mut self) -> String {
        let mut code = self.document.to_owned();
        for step in 0..self.random.random_range(1..4) {
            if step > 0 && self.chance(0.6) {
                break;
            }
            code = if step == 0 { self.member_of(&code, "") } else { self.guarded_member_of(&code) };
        }
        code
    }

    /// A member of something that may be undefined: mostly, but not always, so that it doesn't throw.
    fn guarded_member_of(&mut self, object: &str) -> String {
        match self.random.random_range(0..20) {
            0 => self.member_of(object, ""),
            1..5 => self.member_of(&format!("({object} || {{}})"), ""),
            _ => self.member_of(object, "?."),
        }
    }

    fn member_of(&mut self, object: &str, question: &str) -> String {
        let name = self.name();
        if identifier(&name) != name || self.chance(0.1) {
            return format!("{object}{question}['{name}']");
        }
        format!("{object}{}{name}", if question.is_empty() { "." } else { question })
    }

    fn literal(&mut self) -> String {
        self.pick(&[
            "0",
            "1",
            "2",
            "-1",
            "1.5",
            "10",
            "'x'",
            "'a'",
            "'post'",
            "''",
            "'1'",
            "'10'",
            "null",
            "undefined",
            "true",
            "false",
            "NaN",
            "Infinity",
            "'é'",
            "'😀'",
            "\"it's\"",
            "'\\n'",
            "'\\u0041'",
            "1e21",
            "0.1",
            "'length'",
            "-0",
            "4294967295",
            "'undefined'",
            "100",
        ])
    }

    fn operand(&mut self) -> String {
        match self.random.random_range(0..10) {
            0..3 => self.literal(),
            3 if !self.locals.is_empty() => self.locals.choose(self.random).unwrap().clone(),
            4 if self.constants.len() > 1 => self.constants.choose(self.random).unwrap().clone(),
            5 => self.document.to_owned(),
            _ => self.member_of_document(),
        }
    }

    fn expression(&mut self, depth: u32) -> String {
        self.budget -= 1;
        if depth == 0 || self.budget < 0 {
            return self.operand();
        }
        let depth = depth - 1;
        match self.random.random_range(0..34) {
            0..8 => self.operand(),
            8 => format!("[{}, {}]", self.expression(depth), self.expression(depth)),
            9 => self.object(depth),
            10..13 => {
                let operator = self.pick(&["+", "+", "-", "*", "/", "%", "|", "&", "^", "<<", ">>", ">>>"]);
                format!("({} {operator} {})", self.expression(depth), self.expression(depth))
            }
            13 if self.chance(0.4) => {
                let texts = ["'\\uffff'", "'😀'", "'a'", "'\\ue000x'", "'😀x'"];
                let (left, right) = (self.member_of_document(), self.pick(&texts));
                let (other, operator) = (self.pick(&texts), self.pick(&["<", ">", "<=", ">="]));
                format!("((typeof {left} === 'string' ? {left} : {other}) {operator} {right})")
            }
            13..15 => {
                let operator = self.pick(&["<", ">", "<=", ">=", "==", "===", "!=", "!=="]);
                format!("({} {operator} {})", self.expression(depth), self.expression(depth))
            }
            15 | 16 => {
                let operator = self.pick(&["&&", "||"]);
                format!("({} {operator} {})", self.expression(depth), self.expression(depth))
            }
            17 => format!("({} ?? {})", self.expression(depth), self.expression(depth)),
            18 => format!("({} ? {} : {})", self.condition(), self.expression(depth), self.expression(depth)),
            19 => format!(
                "{}({})",
                self.pick(&["!", "-", "+", "~", "typeof ", "void ", "!!"]),
                self.expression(depth)
            ),
            20 => {
                let (key, made) = (self.operand(), self.object(depth));
                let object = if self.chance(0.5) { self.document.to_owned() } else { made };
                format!("({key} in {object})")
            }
            21 | 22 => {
                let object = self.expression(depth);
                let question = if self.chance(0.95) { "?." } else { "" };
                format!("({object}){question}[{}]", self.expression(depth))
            }
            23 => {
                let object = self.expression(depth);
                format!("({object})?.length")
            }
            24..28 => self.method(depth),
            28 => self.global(depth),
            29 => format!("`{}-${{{}}}!`", self.pick(&["", "k", "é"]), self.expression(depth)),
            30 if !self.helpers.is_empty() => format!("h({}, {})", self.expression(depth), self.operand()),
            31 if !self.locals.is_empty() => {
                let local = self.locals.choose(self.random).unwrap().clone();
                match self.random.random_range(0..3) {
                    0 => format!("({local} = {})", self.expression(depth)),
                    1 => format!("{local}++"),
                    _ => format!("--{local}"),
                }
            }
            32 => format!("({}, {})", self.operand(), self.expression(depth)),
            33 if self.chance(0.1) => self.pick(&ENGINE_ONLY),
            _ => {
                let object = self.expression(depth);
                self.guarded_member_of(&format!("({object})"))
            }
        }
    }

    fn object(&mut self, depth: u32) -> String {
        let mut members = Vec::new();
        for _ in 0..self.random.random_range(0..4) {
            let name = self.name();
            let value = self.expression(depth);
            if identifier(&name) == name && self.chance(0.8) {
                members.push(format!("{name}: {value}"));
            } else if name == "10" {
                members.push(format!("10: {value}"));
            } else {
                members.push(format!("'{name}': {value}"));
            }
        }
        format!("({{{}}})", members.join(", "))
    }

    fn method(&mut self, depth: u32) -> String {
        let code = if self.chance(0.7) {
            self.member_of_document()
        } else {
            format!("({})", self.expression(depth))
        };
        let text = self.pick(&["'a,b,c'", "'x😀y'", "'  pad '", "''", "'aXbXc'", "'abc'"]);
        let array = self.pick(&["[1, 'x', NaN]", "['a', null, 2.50]", "[]", "[[1], undefined, 'b']"]);
        let receiver = match self.random.random_range(0..20) {
            0 => code,
            1 => format!("{code}?"),
            2..4 => text.clone(),
            4..6 => array.clone(),
            6..13 => format!("(typeof {code} === 'string' ? {code} : {text})"),
            _ => format!("(isArray({code}) ? {code} : {array})"),
        };
        let index =
            self.pick(&["0", "1", "-1", "2", "1.5", "NaN", "100", "undefined", "'1'", "null", "-100"]);
        match self.random.random_range(0..14) {
            0 => format!("{receiver}.indexOf({})", self.operand()),
            1 => format!("{receiver}.substring({index}, {})", self.operand()),
            2 => format!("{receiver}.substr({index}, 2)"),
            3 => format!("{receiver}.slice({index})"),
            4 => format!("{receiver}.slice({index}, {})", self.pick(&["1", "-1", "2", "undefined"])),
            5 => format!("{receiver}.charAt({index})"),
            6 => format!("{receiver}.charCodeAt({index})"),
            7 => format!(
                "{receiver}.split({})",
                self.pick(&["','", "''", "'X'", "", "undefined", "'b'", "' '"])
            ),
            8 => format!("{receiver}.concat({}, 'z')", self.operand()),
            9 => format!("{receiver}.join({})", self.pick(&["", "'-'", "undefined", "null", "1"])),
            10 => format!(
                "{receiver}.{}({})",
                self.pick(&["includes", "startsWith", "endsWith", "lastIndexOf"]),
                self.operand()
            ),
            11 if self.chance(0.5) => {
                let (text, place) =
                    (self.pick(&["'a😀b'", "'😀'", "'\\ud83d\\ude00x'"]), self.pick(&["1", "2", "0"]));
                let text = if self.chance(0.5) {
                    text
                } else {
                    format!("(typeof {receiver} === 'string' ? {receiver} : {text})")
                };
                if self.chance(0.5) {
                    format!("({text}.slice(0, {place}) + {text}.slice({place}))")
                } else {
                    format!("[{text}.charAt({place}), {text}.charAt(2)].join('')")
                }
            }
            11 => format!("{receiver}.trim()"),
            12 => format!("{receiver}.toString()"),
            _ => format!("{receiver}.hasOwnProperty({})", self.operand()),
        }
    }

    fn global(&mut self, depth: u32) -> String {
        let argument = self.expression(depth);
        match self.random.random_range(0..10) {
            0 => format!("Object.keys({argument})"),
            1 => format!("Object.values({argument})"),
            2 => format!("Object.entries({argument})"),
            3 => format!("Number({argument})"),
            4 => format!("String({argument})"),
            5 => format!("Boolean({argument})"),
            6 => format!("Math.{}({argument})", self.pick(&["floor", "ceil", "round", "abs", "trunc"])),
            7 => format!("Math.{}({argument}, {})", self.pick(&["max", "min"]), self.operand()),
            8 => format!("Array.isArray({argument})"),
            _ => format!("Object.prototype.hasOwnProperty.call({argument}, {})", self.operand()),
        }
    }
}

/// The name, if it is an identifier; else one that is.
fn identifier(name: &str) -> &str {
    let is_identifier = !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && !name.as_bytes()[0].is_ascii_digit();
    if is_identifier { name } else { "a" }
}
