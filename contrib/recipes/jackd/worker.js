// npm install jackd
'use strict'

const JackdClient = require('jackd')

const at = { host: process.env.BSD_HOST ?? '127.0.0.1', port: Number(process.env.BSD_PORT ?? 11300) }

async function send({ to }) {
  if (!to.includes('@')) throw new Error(`${to} is no address`)
  console.log(`sent to ${to}`)
}

// jackd throws if no job comes in time.
async function next(client, seconds) {
  try {
    return await client.reserveWithTimeout(seconds)
  } catch (error) {
    if (/^(TIMED_OUT|DEADLINE_SOON)$/.test(error.message)) return null
    throw error
  }
}

async function work() {
  const client = new JackdClient()
  await client.connect(at)
  await client.watch('mail')
  await client.ignore('default')
  let stopped = false
  process.on('SIGTERM', () => (stopped = true))
  while (!stopped) {
    // The wait is short so that a stop is noticed.
    const job = await next(client, 2)
    if (!job) continue
    try {
      await send(JSON.parse(job.payload))
      await client.delete(job.id)
    } catch (error) {
      console.log(`failed: ${error.message}`)
      // The policy of the tube counts this, delays the job, and sets it aside in the end.
      await client.release(job.id)
    }
  }
  await client.disconnect()
}

async function put(...addresses) {
  const client = new JackdClient()
  await client.connect(at)
  await client.use('mail')
  for (const to of addresses) await client.put({ to }, { ttr: 60 })
  await client.disconnect()
}

const [command, ...rest] = process.argv.slice(2)
const done = command === 'put' ? put(...rest) : work()
done.catch(error => {
  console.error(error)
  process.exit(1)
})
