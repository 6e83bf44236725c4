// The JavaScript side of a context: runs design functions and collects what they emit, send and raise.
//
// Realms. This file runs in the context's own realm. Each design function is compiled in a realm of its own,
// which Rust creates and passes to `addRealm`, so that functions share no free variables and cannot replace
// the built-ins that this file uses. Documents belong to this file's realm, as in CouchDB: in a design
// function `doc.tags instanceof Array` is false and `isArray(doc.tags)` is true.
//
// Interruption. The engine interrupts only at calls and at backward jumps. A segment (one function applied to
// one document) is committed by assignments alone, so an interrupted segment leaves no trace and can be run
// again.
//
// The value of this file is the object of entry points that Rust calls.
(function (renewTicks, builtins) {
  'use strict';

  const { limitBuiltins, forgive, stringifyPairs, stringifyCounted } = builtins;
  const { stringify, parse } = JSON;
  const freezeOne = Object.freeze;
  const arrayTest = Array.isArray;
  const errorTest = Error.isError;
  const hasOwn = Object.hasOwn;
  const text = String;
  const apply = Reflect.apply;
  const uncurry = (method) => (target, ...rest) => apply(method, target, rest);
  const join = uncurry(Array.prototype.join);
  const slice = uncurry(String.prototype.slice);
  // Text that leaves the engine is UTF-8, which has no lone surrogates.
  const wellFormed = uncurry(String.prototype.toWellFormed);
  const split = uncurry(String.prototype.split);

  // ---- Errors ----

  const MESSAGE_LENGTH_MAX = 2000;

  // What an exception means: `memory`, `stop` (with `error` and `reason`), or that the document is dropped
  // (`message`), unless it is `ambiguous`: memory or not.
  function judge(e) {
    try {
      if (e === 'fatal_error') {
        return { stop: true, error: 'map_runtime_error', reason: "function raised 'fatal_error'" };
      }
      if (isOutOfMemory(e)) return { memory: true };
      if (e === null) return { ambiguous: !nullIsThrown, message: 'null' };
      if (typeof e === 'object') {
        if (arrayTest(e) && e[0] === 'fatal') {
          return { stop: true, error: wellFormed(text(e[1])), reason: describe(e[2]) };
        }
        if (e.name === 'InternalError') return { stop: true, error: 'InternalError', reason: text(e.message) };
      }
    } catch (second) {
      if (isOutOfMemory(second)) return { memory: true };
      if (second === null) return { ambiguous: !nullIsThrown, message: 'null' };
    }
    return { message: describe(e) };
  }

  // The engine throws null when it cannot allocate the exception, and functions may throw it. Rust finds out
  // which and says by `trustNull` that the next one is a function's.
  let nullIsThrown = false;
  let nullSeen = false;

  function trustNull(trusted) {
    nullIsThrown = trusted;
  }

  function isOutOfMemory(e) {
    if (e === null) nullSeen = true;
    try {
      return errorTest(e) && e.name === 'InternalError' && e.message === 'out of memory';
    } catch (_) {
      return false;
    }
  }

  function describe(e) {
    try {
      const raw = e !== null && typeof e === 'object' && !isError(e) ? stringify(e) : text(e);
      return wellFormed(slice(text(raw), 0, MESSAGE_LENGTH_MAX));
    } catch (_) {
      return 'an exception without text';
    }
  }

  function isError(e) {
    return typeof e.name === 'string' && typeof e.stack === 'string';
  }

  // The pair (error, reason) that CouchDB answers for an exception outside of map and reduce.
  function failure(e) {
    if (isOutOfMemory(e)) return ['memory'];
    try {
      if (e === undefined) return ['error', 'internal_error', null];
      if (e[0] === 'error' || e[0] === 'fatal') return ['error', e[1], e[2]];
      if (e.name === 'InternalError') return ['error', e.name, e.message];
      if (e.error && e.reason) return ['error', e.error, e.reason];
      if (e.name) return ['error', e.name, e];
      return ['error', 'unnamed_error', e.stack];
    } catch (second) {
      return isOutOfMemory(second) ? ['memory'] : ['error', 'unnamed_error', null];
    }
  }

  // `respond` for an entry point: the JSON text of its result, or of the failure. It ends in "ambiguous" if
  // null was thrown, for then memory may have run out.
  function respond(work) {
    nullSeen = false;
    try {
      return stringifyCounted(work(), stringify);
    } catch (e) {
      try {
        const answer = failure(e);
        if (nullSeen) answer[answer.length] = 'ambiguous';
        return stringify(answer);
      } catch (second) {
        return stringify(isOutOfMemory(second) ? ['memory'] : ['error', 'unnamed_error', null]);
      }
    }
  }

  // ---- Globals of design functions ----

  const LOG_COUNT_MAX = 100;
  let logs = [];

  function log(message) {
    if (logs.length < LOG_COUNT_MAX) {
      const line = typeof message === 'string' ? message : text(stringify(message));
      logs[logs.length] = wellFormed(slice(line, 0, MESSAGE_LENGTH_MAX));
    }
  }

  function sum(values) {
    let total = 0;
    for (const i in values) total += values[i];
    return total;
  }

  function isArray(value) {
    return arrayTest(value);
  }

  // `require` over `root`: the design document, or `{views: {lib}}` for a map function.
  function requirer(realm, root, cache) {
    function load(name, from) {
      const module = resolve(split(text(name), '/'), from, root, name);
      const id = module.id;
      if (!hasOwn(cache, id)) {
        // Stored before the module runs: a cycle sees the exports so far.
        cache[id] = module.exports;
        try {
          const body = realm.evaluate('0,function (module, exports, require) { ' + module.current + '\n }');
          apply(body, realm.global, [module, module.exports, (next) => load(next, module)]);
        } catch (e) {
          delete cache[id];
          if (isOutOfMemory(e)) throw e;
          throw ['error', 'compilation_error', "Module require('" + name + "') raised error " + describe(e)];
        }
        cache[id] = module.exports;
      }
      return cache[id];
    }
    return (name) => load(name, null);
  }

  // Walks `names` from the module `from` (relative) or from `root`.
  function resolve(names, from, root, name) {
    let path = [];
    if (names[0] === '.' || names[0] === '..') {
      if (from === null) throw invalidPath(`Object has no parent ${text(stringify(root))}`);
      path = split(from.id, '/');
      path.length -= 1;
    }
    for (let i = 0; i < names.length; i++) {
      const part = names[i];
      if (part === '..') {
        if (path.length === 0) throw invalidPath('Object has no parent');
        path.length -= 1;
      } else if (part !== '.') {
        path[path.length] = part;
      }
    }
    let current = root;
    for (let i = 0; i < path.length; i++) {
      if (current === null || typeof current !== 'object' || !hasOwn(current, path[i])) {
        throw invalidPath(`Object has no property "${path[i]}". ${slice(text(stringify(current)), 0, 1000)}`);
      }
      current = current[path[i]];
    }
    if (typeof current !== 'string') {
      throw invalidPath(`Must require a JavaScript string, not: ${typeof current}`);
    }
    return { current, id: join(path, '/'), exports: {}, parent: from };
  }

  function invalidPath(reason) {
    return ['error', 'invalid_require_path', reason];
  }

  // ---- Compilation ----

  const realms = [];

  // `anonymous`: the source begins with a function without a name, which is no statement in JavaScript.
  // `named`: it begins with a function declaration, whose completion value is undefined.
  function compile(realm, source, start) {
    if (start === 'anonymous') return realm.evaluate('0,' + source);
    let value = realm.evaluate(source);
    if (typeof value !== 'function' && start === 'named') value = realm.evaluate('0,' + source);
    return value;
  }

  // Adds a realm, of `role` map, reduce or design. Returns its index.
  function addRealm(global, role, library) {
    const realm = { global, evaluate: global.eval, fun: null, spin: null };
    realm.spin = realm.evaluate('0,function () { for (;;); }');
    limitBuiltins(global);
    global.log = log;
    global.sum = sum;
    global.isArray = isArray;
    global.toJSON = global.JSON.stringify;
    if (role === 'map') {
      global.emit = emit;
      global.require = requirer(realm, { views: { lib: library } }, {});
    } else if (role === 'design') {
      global.emit = () => { emitted = true; };
      global.require = requirer(realm, design, modules);
      global.provides = provides;
      global.registerType = registerType;
      global.start = start;
      global.send = send;
      global.getRow = getRow;
    }
    realms[realms.length] = realm;
    return realms.length - 1;
  }

  // Compiles `source` in the newest realm, which only then counts as a function's. Returns the JSON text of
  // `["ok"]`, `["not_function"]`, `["syntax", text]` or `["memory"]`.
  function addFunction(source, start) {
    const realm = realms[realms.length - 1];
    try {
      const value = compile(realm, source, start);
      if (typeof value !== 'function') return '["not_function"]';
      realm.fun = value;
      return '["ok"]';
    } catch (e) {
      return stringify(isOutOfMemory(e) ? ['memory'] : ['raised', describe(e)]);
    }
  }

  // Spins until the next interrupt in this file's realm (-1) or in a function's. The engine's counter of that
  // realm then has its initial value.
  function spin(index) {
    forgive();
    if (index < 0) for (;;);
    realms[index].spin();
  }

  // ---- Map ----

  const ROW_COUNT_MAX = 20000;
  const TEXT_LENGTH_MAX = 1 << 20;
  const SERIALISED = -1;
  const DROPPED = -2;
  const STOPPED = -3;
  const SKIPPED = -4;

  let documents = [];
  let at = 0;
  let functionIndex = 0;
  let frozen = -1;
  let freezing = true;

  // Keys and values, alternating, of the segments whose rows are all primitive: they cannot change later.
  let rows = [];
  let rowsEnd = 0;
  let rowsKept = 0;
  let primitive = true;
  // One JSON array of [key, value] pairs for each segment with other rows.
  let texts = [];
  let textsLength = 0;
  let messages = [];
  // For each committed segment: its number of elements in `rows`, or one of the codes above.
  let counts = [];

  function emit(key, value) {
    rows[rowsEnd] = key;
    rows[rowsEnd + 1] = value;
    rowsEnd += 2;
    if (primitive) primitive = isPrimitive(key) && isPrimitive(value);
  }

  function isPrimitive(value) {
    if (value === null || value === undefined) return true;
    const type = typeof value;
    if (type === 'string') {
      textsLength += value.length;
      return true;
    }
    return type === 'number' || type === 'boolean';
  }

  // Without recursion: a document that can be parsed can be frozen, however deep it is.
  function freeze(document) {
    const found = [document];
    let count = 1;
    while (count > 0) {
      const value = found[--count];
      freezeOne(value);
      if (arrayTest(value)) {
        const length = value.length;
        for (let i = 0; i < length; i++) {
          const element = value[i];
          if (typeof element === 'object' && element !== null) found[count++] = element;
        }
      } else {
        for (const name in value) {
          const member = value[name];
          if (typeof member === 'object' && member !== null) found[count++] = member;
        }
      }
    }
  }

  function begin(batch, firstFunction) {
    documents = batch;
    at = 0;
    functionIndex = firstFunction;
    frozen = -1;
  }

  // Whether documents are frozen; Rust passes false only if no function can change a document.
  function setFreezing(enabled) {
    freezing = enabled;
  }

  // Functions that are not run any more.
  function retire(index) {
    realms[index].fun = null;
  }

  // Runs up to `segments` segments. Returns 0; or 1 if memory ran out in the segment after the committed ones,
  // 2 if null was thrown in it.
  function run(segments) {
    const functionCount = realms.length;
    const end = counts.length + segments;
    while (at < documents.length) {
      const document = documents[at];
      while (functionIndex < functionCount) {
        if (counts.length >= end || rowsKept > ROW_COUNT_MAX || textsLength > TEXT_LENGTH_MAX) return 0;
        rowsEnd = rowsKept;
        primitive = true;
        const fun = realms[functionIndex].fun;
        if (fun === null) {
          counts[counts.length] = SKIPPED;
          functionIndex++;
          continue;
        }
        try {
          if (freezing && frozen !== at) {
            freeze(document);
            frozen = at;
          }
          fun(document);
          if (primitive) {
            counts[counts.length] = rowsEnd - rowsKept;
            rowsKept = rowsEnd;
          } else {
            const line = stringifyPairs(rows, rowsKept, rowsEnd);
            texts[texts.length] = line;
            textsLength += line.length;
            counts[counts.length] = SERIALISED;
          }
        } catch (e) {
          const verdict = judge(e);
          if (verdict.memory) return 1;
          if (verdict.ambiguous) return 2;
          const message = stringify(verdict.stop ? [verdict.error, verdict.reason] : [verdict.message]);
          messages[messages.length] = message;
          if (verdict.stop) realms[functionIndex].fun = null;
          counts[counts.length] = verdict.stop ? STOPPED : DROPPED;
        }
        functionIndex++;
      }
      functionIndex = 0;
      at++;
    }
    return 0;
  }

  // Leaves the segment at hand, whose function Rust has stopped.
  function skip() {
    realms[functionIndex].fun = null;
    counts[counts.length] = SKIPPED;
    functionIndex++;
  }

  // The committed segments: counts; rows; texts and messages, a line each; log.
  function report() {
    rows.length = rowsKept;
    const result = [join(counts, ','), stringify(rows), join(texts, '\n'), join(messages, '\n'), stringify(logs)];
    rows = [];
    rowsEnd = 0;
    rowsKept = 0;
    texts = [];
    textsLength = 0;
    messages = [];
    counts = [];
    logs = [];
    if (at >= documents.length) documents = [];
    return result;
  }

  // ---- Reduce ----

  // Without keys the values are reductions.
  function reduce(index, keys, values) {
    return respond(() => {
      let result = null;
      try {
        result = realms[index].fun(keys, values, keys === null);
      } catch (e) {
        const verdict = judge(e);
        if (verdict.memory) return ['memory'];
        if (verdict.ambiguous) return ['ambiguous'];
        if (verdict.stop) return ['error', verdict.error, verdict.reason];
        log('function raised exception ' + verdict.message);
      }
      return ['ok', result === undefined ? null : result];
    });
  }

  function takeLogs() {
    const result = stringify(logs);
    logs = [];
    return result;
  }

  // ---- Functions of a design document ----

  let design = null;
  let modules = {};
  let emitted = false;

  function setDesign(value) {
    design = value;
    modules = {};
  }

  // The source at `path`: `["ok", source]`, or an error.
  function source(path) {
    return respond(() => {
      let value = design;
      for (let i = 0; i < path.length; i++) {
        if (value === null || typeof value !== 'object' || arrayTest(value)) {
          throw ['error', 'not_found', 'json_mismatch'];
        }
        if (!hasOwn(value, path[i])) throw ['error', 'not_found', 'missing json key: ' + path[i]];
        value = value[path[i]];
      }
      if (!value) {
        const name = path[path.length - 1];
        const reason = `missing ${path[0]} function ${name} on design doc ${design._id}`;
        throw ['error', 'not_found', reason];
      }
      return ['ok', typeof value === 'string' ? value : text(stringify(value))];
    });
  }

  function filter(index, batch, request) {
    return respond(() => {
      const results = [];
      for (let i = 0; i < batch.length; i++) {
        results[i] = apply(realms[index].fun, design, [batch[i], request]) ? true : false;
        renewTicks();
      }
      return ['ok', results];
    });
  }

  function filterView(index, batch) {
    return respond(() => {
      const results = [];
      for (let i = 0; i < batch.length; i++) {
        emitted = false;
        realms[index].fun(batch[i]);
        results[i] = emitted;
        renewTicks();
      }
      return ['ok', results];
    });
  }

  function validate(index, document, previous, user, security) {
    return respond(() => {
      try {
        apply(realms[index].fun, design, [document, previous, user, security]);
      } catch (e) {
        if (isOutOfMemory(e) || (e !== null && e !== undefined && e.name && e.stack)) throw e;
        return nullSeen ? ['refused', e, 'ambiguous'] : ['refused', e];
      }
      return ['ok'];
    });
  }

  function update(index, document, request) {
    return respond(() => {
      try {
        if (request.method === 'GET') {
          throw ['error', 'method_not_allowed', 'Update functions do not allow GET'];
        }
        const result = apply(realms[index].fun, design, [document, request]);
        const stored = result[0];
        if (!isResponse(result[1])) throw noResponse('update');
        return ['ok', stored === undefined ? null : stored, wrap(result[1])];
      } catch (e) {
        throw renderError(e);
      }
    });
  }

  function show(index, document, request) {
    return respond(() => {
      try {
        resetRender(null, null);
        let response = wrap(apply(realms[index].fun, design, [document, request]) || {});
        if (chunks.length > 0) {
          response.headers = response.headers || {};
          for (const name in startResponse) response.headers[name] = startResponse[name];
          response.body = join(chunks, '') + (response.body || '');
          chunks = [];
        }
        if (providers.length > 0) {
          const provided = wrap(runProvider(request) || {});
          response.body = (response.body || '') + join(chunks, '') + (provided.body || '');
          response = withContentType(response, contentType);
        }
        if (!isResponse(response)) throw noResponse('show');
        return ['ok', response];
      } catch (e) {
        if (isOutOfMemory(e)) throw e;
        if (document === null && request.path.length > 5) throw ['error', 'not_found', 'document not found'];
        throw renderError(e);
      }
    });
  }

  function list(index, head, request, nextRow, output) {
    return respond(() => {
      try {
        resetRender(nextRow, output);
        let tail = apply(realms[index].fun, design, [head, request]);
        if (providers.length > 0) tail = runProvider(request);
        if (!gotRow) getRow();
        if (tail !== undefined) chunks[chunks.length] = wellFormed(text(tail));
        flush();
        return ['ok'];
      } catch (e) {
        throw isOutOfMemory(e) ? e : renderError(e);
      } finally {
        resetRender(null, null);
      }
    });
  }

  function rewrite(index, request) {
    return respond(() => {
      let result;
      try {
        result = apply(realms[index].fun, design, [request]);
      } catch (e) {
        throw renderError(e);
      }
      if (!result) return ['none'];
      return ['ok', typeof result === 'string' ? { path: result, method: request.method } : result];
    });
  }

  function isResponse(value) {
    return typeof value === 'string' || (typeof value === 'object' && value !== null && !arrayTest(value));
  }

  function noResponse(kind) {
    return ['error', 'render_error', `undefined response from ${kind} function`];
  }

  function wrap(response) {
    return typeof response === 'string' ? { body: wellFormed(response) } : response;
  }

  function renderError(e) {
    if (isOutOfMemory(e)) return e;
    if (e !== null && e !== undefined) {
      if ((e.error && e.reason) || e[0] === 'error' || e[0] === 'fatal') return e;
      const message = `function raised error: ${describe(e)} \nstacktrace: ${describe(e.stack)}`;
      log(message);
      return ['error', 'render_error', message];
    }
    return ['error', 'render_error', `function raised error: ${text(e)}`];
  }

  // ---- start, send, getRow ----

  let chunks = [];
  let startResponse = {};
  let gotRow = false;
  let lastRow = false;
  let readRow = null;
  let write = null;

  function resetRender(nextRow, output) {
    chunks = [];
    startResponse = {};
    gotRow = false;
    lastRow = false;
    readRow = nextRow;
    write = output;
    providers = [];
    contentType = null;
  }

  function start(response) {
    startResponse = response || {};
  }

  function send(chunk) {
    chunks[chunks.length] = wellFormed(text(chunk.toString()));
  }

  function flush() {
    write(stringify(chunks), null);
    chunks = [];
  }

  function getRow() {
    if (readRow === null) throw ['error', 'render_error', 'getRow is for list functions'];
    if (lastRow) return null;
    if (!gotRow) {
      gotRow = true;
      startResponse = withContentType(startResponse, contentType);
      write(stringify(chunks), stringify(startResponse));
      chunks = [];
      startResponse = {};
    } else {
      flush();
    }
    renewTicks();
    const row = readRow();
    if (row === null || row === undefined) {
      lastRow = true;
      return null;
    }
    return parse(row);
  }

  function withContentType(response, type) {
    response.headers = response.headers || {};
    if (type) response.headers['Content-Type'] = response.headers['Content-Type'] || type;
    return response;
  }

  // ---- provides, registerType ----

  let providers = [];
  let contentType = null;
  const typesByName = new Map();
  const namesByType = new Map();

  function registerType(name, ...types) {
    typesByName.set(name, types);
    for (const type of types) namesByType.set(type, name);
  }

  registerType('all', '*/*');
  registerType('text', 'text/plain; charset=utf-8', 'txt');
  registerType('html', 'text/html; charset=utf-8');
  registerType('xhtml', 'application/xhtml+xml', 'xhtml');
  registerType('xml', 'application/xml', 'text/xml', 'application/x-xml');
  registerType('js', 'text/javascript', 'application/javascript', 'application/x-javascript');
  registerType('css', 'text/css');
  registerType('ics', 'text/calendar');
  registerType('csv', 'text/csv');
  registerType('rss', 'application/rss+xml');
  registerType('atom', 'application/atom+xml');
  registerType('yaml', 'application/x-yaml', 'text/yaml');
  registerType('multipart_form', 'multipart/form-data');
  registerType('url_encoded_form', 'application/x-www-form-urlencoded');
  registerType('json', 'application/json', 'text/x-json');

  function provides(name, fun) {
    providers[providers.length] = { name, fun };
  }

  function typesOf(name) {
    return typesByName.get(name) || [];
  }

  // Chooses by `format`, else by the Accept header, else the first one, and runs it.
  function runProvider(request) {
    const accept = request.headers && request.headers.Accept;
    let name = null;
    if (request.query && request.query.format) {
      name = request.query.format;
      contentType = typesOf(name)[0];
    } else if (accept) {
      const supported = [];
      for (let i = providers.length - 1; i >= 0; i--) supported.push(...typesOf(providers[i].name));
      contentType = bestType(supported, accept);
      name = namesByType.get(contentType);
    } else {
      name = providers[0].name;
      contentType = typesOf(name)[0];
    }
    for (const provider of providers) {
      if (provider.name === name) return apply(provider.fun, design, []);
    }
    const known = providers.map((provider) => typesOf(provider.name).join(', ') || provider.name);
    const reason = `Content-Type ${accept || name} not supported, try one of: ${known.join(', ')}`;
    throw ['error', 'not_acceptable', reason];
  }

  // The supported type that fits the Accept header best; of equal ones the last. RFC 9110, 12.5.1.
  function bestType(supported, accept) {
    const ranges = accept.split(',').map(parseRange);
    let best = '';
    let bestFitness = 0;
    let bestQuality = 0;
    for (const type of supported) {
      const wanted = parseRange(type);
      let fitness = -1;
      let quality = 0;
      for (const range of ranges) {
        const fits = range.type === wanted.type || range.type === '*' || wanted.type === '*';
        const subFits = range.subtype === wanted.subtype || range.subtype === '*' || wanted.subtype === '*';
        if (!fits || !subFits) continue;
        let score = (range.type === wanted.type ? 100 : 0) + (range.subtype === wanted.subtype ? 10 : 0);
        for (const [name, value] of wanted.parameters) if (range.parameters.get(name) === value) score++;
        if (score > fitness) {
          fitness = score;
          quality = range.quality;
        }
      }
      if (quality > 0 && (fitness > bestFitness || (fitness === bestFitness && quality >= bestQuality))) {
        best = type;
        bestFitness = fitness;
        bestQuality = quality;
      }
    }
    return best;
  }

  function parseRange(range) {
    const parts = range.split(';');
    const [type, subtype] = (parts[0].trim() === '*' ? '*/*' : parts[0].trim()).split('/');
    const parameters = new Map();
    let quality = 1;
    for (let i = 1; i < parts.length; i++) {
      const [name, value] = parts[i].split('=');
      if (value === undefined) continue;
      if (name.trim() === 'q') {
        const number = parseFloat(value);
        quality = number >= 0 && number <= 1 ? number : 1;
      } else {
        parameters.set(name.trim(), value.trim());
      }
    }
    return { type, subtype, quality, parameters };
  }

  // Documents belong to this realm.
  limitBuiltins(globalThis);

  return freezeOne({
    addRealm, addFunction, spin, trustNull, begin, setFreezing, retire, run, skip, report, reduce, takeLogs,
    setDesign, source, filter, filterView, validate, update, show, list, rewrite,
  });
})
