# gem install backburner
require 'backburner'

Backburner.configure do |config|
  config.beanstalk_url = ENV.fetch('BEANSTALK_URL', 'beanstalk://127.0.0.1:11300')
  # Tubes are named NAMESPACE.QUEUE: here shop.mail.
  config.tube_namespace = 'shop'
  # Backburner counts the retries itself, and buries a job after the last one.
  config.max_job_retries = 7
  config.retry_delay = 5
  # The time to run of each job.
  config.respond_timeout = 120
end

class SendMail
  include Backburner::Queue
  queue 'mail'

  def self.perform(to)
    raise ArgumentError, "#{to} is no address" unless to.include?('@')
    puts "sent to #{to}"
  end
end
