// All that jackd can do, as a transcript. Usage: node jackd_client.js HOST PORT
//
// Left out is pauseTube: jackd 2.2.2 sends it without the end of its line.
'use strict'

const JackdClient = require('jackd')

const [host, port] = process.argv.slice(2)
const ids = []
const CLOCKED = /^(age|time-left|pause-time-left): /
const COUNTED = /^(current-|cmd-|total-|job-timeouts|max-job-size|draining)/

function name(id) {
  if (!ids.includes(id)) ids.push(id)
  return `#${ids.indexOf(id) + 1}`
}

function show(value) {
  if (value && value.payload !== undefined) return `job ${name(value.id)} ${quote(value.payload)}`
  if (typeof value === 'string' && value.startsWith('---')) return yaml(value)
  return String(value)
}

function quote(bytes) {
  return bytes.length > 100 ? `${bytes.length} bytes` : JSON.stringify(bytes.toString('latin1'))
}

function yaml(text) {
  return text.trimEnd().split('\n').slice(1).filter(isCompared).map(entry).join(', ')
}

function isCompared(line, index, lines) {
  return !lines[0].startsWith('current-jobs-urgent') || COUNTED.test(line)
}

function entry(line) {
  if (/^id: /.test(line)) return `id: ${name(line.slice(4))}`
  return CLOCKED.test(line) ? line.replace(/: .*/, ': *') : line.replaceAll('"', '')
}

async function call(what, promise, isId) {
  try {
    const value = await promise
    console.log(`${what} -> ${isId ? name(value) : show(value)}`)
    return value
  } catch (error) {
    console.log(`${what} raised ${error.message || error}`)
  }
}

async function main() {
  const c = new JackdClient()
  await c.connect({ host, port: Number(port) })
  await call('isConnected', Promise.resolve(c.isConnected()))
  await call('listTubes', c.listTubes())
  await call('use', c.use('work'))
  await call('watch', c.watch('work'))
  await call('ignore', c.ignore('default'))
  await call('ignore the only one', c.ignore('work'))
  await call('use a bad name', c.use('-bad'))
  await call('getCurrentTube', c.getCurrentTube())
  await call('listTubesWatched', c.listTubesWatched())

  const first = await call('put', c.put('first'), true)
  await call('put urgent', c.put('urgent', { priority: 1, ttr: 99 }), true)
  const later = await call('put delayed', c.put('later', { delay: 1000 }), true)
  await call('put an object', c.put({ name: 'value' }, { priority: 5 }), true)
  await call('put bytes', c.put(Buffer.from([0, 13, 10, 255]).toString('latin1'), { priority: 6 }), true)
  await call('put the biggest', c.put('x'.repeat(65535), { priority: 7 }), true)
  await call('put too big', c.put('x'.repeat(65536)))

  await call('peek', c.peek(first))
  await call('peek none', c.peek('1000000000000000'))
  await call('peekReady', c.peekReady())
  await call('peekDelayed', c.peekDelayed())
  await call('peekBuried', c.peekBuried())
  await call('statsJob', c.statsJob(later))
  await call('statsJob none', c.statsJob('1000000000000000'))
  await call('statsTube', c.statsTube('work'))
  await call('statsTube none', c.statsTube('none'))

  let job = await call('reserve', c.reserve())
  await call('touch', c.touch(job.id))
  await call('statsJob', c.statsJob(job.id))
  await call('release', c.release(job.id, { priority: 3 }))
  await call('release again', c.release(job.id))
  job = await call('reserveWithTimeout', c.reserveWithTimeout(0))
  await call('release later', c.release(job.id, { priority: 3, delay: 1000 }))
  await call('kickJob', c.kickJob(job.id))
  await call('kickJob again', c.kickJob(job.id))
  job = await call('reserveJob', c.reserveJob(later))
  await call('bury', c.bury(job.id, 9))
  await call('peekBuried', c.peekBuried())
  await call('statsJob', c.statsJob(job.id))
  await call('kick', c.kick(10))
  await call('delete', c.delete(later))
  await call('delete again', c.delete(later))
  while ((job = await call('reserveWithTimeout', c.reserveWithTimeout(0)))) {
    await call('delete', c.delete(job.id))
  }

  const worker = new JackdClient()
  await worker.connect({ host, port: Number(port) })
  await call('worker watch', worker.watch('work'))
  await call('worker list', worker.listTubesWatched())
  const waiting = worker.reserve()
  await call('put for the worker', c.put('handed over'), true)
  job = await call('worker reserve', waiting)
  await call('delete what another has', c.delete(job.id))
  await call('worker delete', worker.delete(job.id))
  await call('put delayed by one second', c.put('soon', { delay: 1 }), true)
  job = await call('worker reserve waits', worker.reserveWithTimeout(10))
  await call('worker delete', worker.delete(job.id))
  await worker.quit()
  await new Promise(resolve => worker.socket.once('close', resolve))
  await call('listTubes', c.listTubes())
  await call('stats', c.stats())
  await c.quit()
}

main().catch(error => {
  console.error(error)
  process.exit(1)
})
