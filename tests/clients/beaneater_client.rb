# All that beaneater can do, as a transcript. Usage: beaneater_client.rb HOST PORT

require 'beaneater'

CLOCKED = %w[age time_left pause_time_left].freeze
COUNTED = /\A(current_|cmd_|total_|job_timeouts|max_job_size|draining)/
IDS = []

def name(id)
  IDS << id.to_s unless IDS.include?(id.to_s)
  "##{IDS.index(id.to_s) + 1}"
end

def show(value)
  case value
  when Beaneater::Job then "job #{name(value.id)} #{value.body.inspect}"
  when Beaneater::StatStruct then dictionary(value.to_h)
  when Hash then response(value)
  when Array then "[#{value.map { |item| show(item) }.join(', ')}]"
  when Beaneater::Tube then "tube #{value.name}"
  else value.inspect
  end
end

def dictionary(hash)
  entries = hash.sort.map do |key, value|
    shown = CLOCKED.include?(key) ? value.class : value.inspect
    "#{key}: #{key == 'id' ? name(value) : shown}"
  end
  "{#{entries.join(', ')}}"
end

# `KICKED 3` and `INSERTED 3` come in the same shape; only the latter has an id.
def response(hash)
  id = hash[:id] && (hash[:status] == 'INSERTED' ? name(hash[:id]) : hash[:id])
  [hash[:status], id, hash[:body] && show(hash[:body])].compact.join(' ')
end

def call(what)
  value = yield
  puts "#{what} -> #{show(value)}"
  value
rescue StandardError => e
  puts "#{what} raised #{e.class} #{e.message}"
  nil
end

beanstalk = Beaneater.new("#{ARGV[0]}:#{ARGV[1]}")
tubes = beanstalk.tubes
call('all tubes') { tubes.all.map(&:name) }
call('used') { tubes.used }
call('watch') { tubes.watch('work') }
call('watched') { tubes.watched }
call('watch!') { tubes.watch!('work', 'more') }
call('ignore') { tubes.ignore('more') }
call('ignore the only one') { tubes.ignore('work') }
call('use a bad name') { tubes.use('-bad') }

work = tubes.find('work')
call('put') { work.put('first') }
call('put urgent') { work.put('urgent', pri: 0, ttr: 99) }
later = call('put delayed') { work.put('later', delay: 1000) }
call('put the biggest') { work.put('x' * 65_535, pri: 5_000, delay: 1000) }
call('put too big') { work.put('x' * 65_536) }
%i[ready delayed buried].each { |state| call("peek #{state}") { work.peek(state) } }
call('stats of the tube') { work.stats }
call('stats of no tube') { tubes.find('none').stats }
call('find') { beanstalk.jobs.find(later[:id]) }
call('find none') { beanstalk.jobs.find(10**15) }

job = call('reserve') { work.reserve }
call('reserved?') { job.reserved? }
call('touch') { job.touch }
call('stats of the job') { job.stats }
call('tube, ttr, pri, delay') { [job.tube, job.ttr, job.pri, job.delay] }
call('release') { job.release(pri: 7) }
call('release again') { job.release }
job = call('reserve with timeout') { tubes.reserve(0) }
call('release later') { job.release(delay: 1000) }
call('kick of the job') { job.kick }
job = call('reserve with timeout') { tubes.reserve(0) }
call('bury') { job.bury(pri: 9) }
call('peek buried') { work.peek(:buried) }
call('stats of the job') { job.stats }
call('kick') { work.kick(10) }
call('kick the delayed') { work.kick(1) }
call('pause') { work.pause(1000) }
call('reserve while paused') { tubes.reserve(0) }
call('stats of the tube') { work.stats }
call('pause 0') { work.pause(0) }
call('pause none') { tubes.find('none').pause(1) }
job = call('reserve') { tubes.reserve(0) }
call('delete') { job.delete }
call('delete again') { job.delete }
call('exists?') { job.exists? }

call('put delayed by one second') { work.put('soon', delay: 1, pri: 0) }
call('clear') { work.clear }
tubes.find('jobs').put('processed')
beanstalk.jobs.register('jobs') do |task|
  puts "processing #{show(task)}"
  raise Beaneater::AbortProcessingError
end
call('process!') { beanstalk.jobs.process!(reserve_timeout: 0) }
call('all tubes') { tubes.all.map(&:name) }
beanstalk.stats.keys.grep(COUNTED).sort.each { |key| puts "stats #{key}: #{beanstalk.stats[key]}" }
call('close') { beanstalk.close }
